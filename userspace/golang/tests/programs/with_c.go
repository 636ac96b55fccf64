// A program that calls C: linked by the C linker, with C's start-up code before Go's text.
package main

/*
static int twice(int x) { volatile int y = x; return y * 2; }
*/
import "C"
import "fmt"

func main() { fmt.Println(C.twice(21)) }
