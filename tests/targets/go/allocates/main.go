// Two goroutines that build trees, maps and slices, which soon are garbage: much of the time goes into
// the allocator and the collector, whose functions run on system stacks.
// usage: allocates SECONDS
package main

import (
	"os"
	"strconv"
	"sync"
	"time"
)

type node struct {
	left, right *node
	payload     [6]uint64
}

var kept [2]*node

//go:noinline
func tree(depth int) *node {
	if depth == 0 {
		return &node{}
	}
	return &node{left: tree(depth - 1), right: tree(depth - 1)}
}

//go:noinline
func fillsMap(count int) int {
	table := map[string][]int{}
	for i := 0; i < count; i++ {
		key := strconv.Itoa(i * 7919)
		table[key] = append(table[key], i, i+1, i+2)
	}
	return len(table)
}

//go:noinline
func growsSlices(count int) int {
	total := 0
	for i := 0; i < count; i++ {
		var large []byte
		for len(large) < 60<<10 {
			large = append(large, make([]byte, 2048)...)
		}
		total += len(large)
	}
	return total
}

//go:noinline
func allocates(number int, end time.Time) {
	for time.Now().Before(end) {
		kept[number] = tree(13)
		fillsMap(5000)
		growsSlices(40)
	}
}

func main() {
	seconds, _ := strconv.ParseFloat(os.Args[1], 64)
	end := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	var group sync.WaitGroup
	for i := range kept {
		group.Add(1)
		go func(number int) {
			defer group.Done()
			allocates(number, end)
		}(i)
	}
	group.Wait()
}
