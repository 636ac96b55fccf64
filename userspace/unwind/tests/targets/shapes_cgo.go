// Go and C in one stack: Go calls C calls Go.
package main

/*
static long in_c(long n) { volatile long sum = n; for (int i = 0; i < 4; i++) sum += i; return sum; }
extern long inGo(long);
static long through_c(long n) { return inGo(n + 1) + in_c(n); }
*/
import "C"

//export inGo
func inGo(n C.long) C.long { return C.in_c(n) + 1 }

func main() {
	total := C.in_c(3)
	for i := 0; i < 2; i++ {
		total += C.through_c(total)
	}
	if total == 0 {
		panic("cannot be")
	}
}
