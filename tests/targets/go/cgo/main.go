// Go calls C, C burns and calls back into Go, which burns too: one stack has both.
// usage: cgo [seconds [milliseconds]]: waits in C so long first
package main

/*
#cgo CFLAGS: -O2 -fomit-frame-pointer
#include <stdint.h>
uint64_t cgo_c_entry(uint64_t units);
int cgo_c_wait(uint64_t milliseconds);
*/
import "C"

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
)

//go:noinline
func goLeaf(units uint64) uint64 {
	x := units | 1
	for i := uint64(0); i < units*4000; i++ {
		x = x*6364136223846793005 + 1442695040888963407
	}
	return x
}

//export goCallback
func goCallback(units C.uint64_t) C.uint64_t {
	return C.uint64_t(goLeaf(uint64(units)) + 1)
}

//go:noinline
func callC(units uint64) uint64 { return uint64(C.cgo_c_entry(C.uint64_t(units))) + 1 }

//go:noinline
func waitInC(milliseconds uint64) int { return int(C.cgo_c_wait(C.uint64_t(milliseconds))) + 1 }

func main() {
	if len(os.Args) > 2 {
		if value, err := strconv.ParseUint(os.Args[2], 10, 64); err == nil {
			waitInC(value)
		}
	}
	seconds := 60.0
	if len(os.Args) > 1 {
		if value, err := strconv.ParseFloat(os.Args[1], 64); err == nil {
			seconds = value
		}
	}
	end := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	done := make(chan uint64)
	go func() {
		var sum uint64
		for time.Now().Before(end) {
			sum += callC(20)
		}
		done <- sum
	}()
	<-done
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	fmt.Printf("cpu name=cgo pid=%d seconds=%.6f\n", os.Getpid(), float64(usage.Utime.Nano()+usage.Stime.Nano())/1e9)
}
