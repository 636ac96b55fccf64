// A program with interfaces, generics, closures and inlined calls, small enough to reason about.
package main

import (
	"fmt"
	"os"
	"strings"
)

type shape interface{ area(n int) int }
type square struct{ side int }

func leaf(x int) int   { return x*x + 3 }
func middle(x int) int { return leaf(x) + leaf(x+1) }

//go:noinline
func outer(x int) int {
	y := middle(x)
	if y > 7 {
		y += middle(y)
	}
	return y
}

//go:noinline
func (s square) area(n int) int {
	var scratch [400]byte
	for i := range scratch {
		scratch[i] = byte(i * n)
	}
	return int(scratch[n%400]) + outer(n) + s.side
}

func sum[T any](values []T, of func(T) int) int {
	total := 0
	for _, value := range values {
		total += of(value)
	}
	return total
}

func main() {
	var s shape = square{3}
	total := 0
	for i := 0; i < len(os.Args)*100; i++ {
		total += s.area(i)
	}
	total += sum([]int{1, 2, 3}, func(i int) int { return outer(i) })
	fmt.Println(strings.Repeat("x", 3), total)
}
