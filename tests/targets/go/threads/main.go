// threads COUNT SECONDS: COUNT goroutines that each hold a thread in a system call (pause) until a signal comes,
// which none does. At its end it prints how many of the calls have returned since it was ready.
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
	// The runtime's own signals, to stop threads for its collector, interrupt calls that have just begun.
	for quiet := 0; quiet < 10; quiet++ {
		before := returned.Load()
		time.Sleep(100 * time.Millisecond)
		if returned.Load() != before {
			quiet = -1
		}
	}
	returned.Store(0)
	fmt.Println("ready")
	time.Sleep(time.Duration(seconds * float64(time.Second)))
	fmt.Printf("returned=%d\n", returned.Load())
}
