// threads COUNT SECONDS: COUNT goroutines that each hold a thread in a system call (pause) until a signal comes,
// which none does. At its end it prints how many of the calls have returned.
package main

import (
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
)

var waiting, returned atomic.Int64

//go:noinline
func waitsForSignal() {
	waiting.Add(1)
	for {
		syscall.Pause()
		returned.Add(1)
	}
}

func main() {
	count, _ := strconv.Atoi(os.Args[1])
	seconds, _ := strconv.ParseFloat(os.Args[2], 64)
	for i := 0; i < count; i++ {
		go waitsForSignal()
	}
	for waiting.Load() < int64(count) {
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Println("ready")
	time.Sleep(time.Duration(seconds * float64(time.Second)))
	fmt.Printf("returned=%d\n", returned.Load())
}
