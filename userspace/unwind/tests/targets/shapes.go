// Go: growing stacks, goroutines, closures, defer and panic, maps, channels, system calls.
package main

import (
	"fmt"
	"os"
	"sort"
	"time"
)

//go:noinline
func leaf(n int) int { return n*3 + len(os.Args) }

//go:noinline
func recurse(depth, n int) int {
	var large [64]int
	large[depth%64] = n
	if depth == 0 {
		return leaf(n)
	}
	return recurse(depth-1, n+1) + large[depth%64]
}

//go:noinline
func recovers() (result int) {
	defer func() {
		if recover() != nil {
			result = leaf(1)
		}
	}()
	var nothing []int
	return nothing[leaf(5)]
}

//go:noinline
func worker(input <-chan int, output chan<- int) {
	for n := range input {
		output <- recurse(8, n)
	}
	close(output)
}

func main() {
	input, output := make(chan int), make(chan int)
	go worker(input, output)
	for i := 0; i < 2; i++ {
		input <- i
		<-output
	}
	close(input)
	values := []int{5, 2, 8, 1}
	sort.Slice(values, func(i, j int) bool { return leaf(values[i]) < leaf(values[j]) })
	counts := map[string]int{}
	counts[fmt.Sprint(values)]++
	recurse(40, 1)
	recovers()
	_ = time.Now()
	file, err := os.Open("/dev/null")
	if err == nil {
		file.Close()
	}
}
