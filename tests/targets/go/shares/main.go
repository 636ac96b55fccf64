// The 50/30/20 shares in goroutines, below an interface call, a closure and sort.Slice.
// usage: shares_go [seconds] [goroutines]
package main

import (
	"fmt"
	"os"
	"sort"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const unit = 4000

var never uint64

//go:noinline
func burnFifty(units uint64) uint64 {
	x := units | 1
	for i := uint64(0); i < units*unit; i++ {
		x = x*6364136223846793005 + 1442695040888963407
	}
	return x
}

//go:noinline
func burnThirty(units uint64) uint64 {
	x := units | 3
	for i := uint64(0); i < units*unit; i++ {
		x = x*6364136223846793005 + 1442695040888963407
	}
	return x
}

//go:noinline
func burnTwenty(units uint64) uint64 {
	x := units | 5
	for i := uint64(0); i < units*unit; i++ {
		x = x*6364136223846793005 + 1442695040888963407
	}
	return x
}

type burner interface{ run(units uint64) uint64 }
type fifty struct{}
type thirty struct{}
type twenty struct{}

//go:noinline
func (fifty) run(units uint64) uint64 { return burnFifty(units) + 1 }

//go:noinline
func (thirty) run(units uint64) uint64 { return burnThirty(units) + 1 }

//go:noinline
func (twenty) run(units uint64) uint64 { return burnTwenty(units) + 1 }

type work struct {
	burners [3]burner
	random  uint64
	sink    uint64
}

// Drawn from: a fixed order of turns may be in step with a sampler.
var order = [10]int{0, 0, 0, 0, 0, 1, 1, 1, 2, 2}

//go:noinline
func (w *work) compareAndBurn(left, right int) bool {
	w.random ^= w.random << 13
	w.random ^= w.random >> 7
	w.random ^= w.random << 17
	w.sink += w.burners[order[w.random%10]].run(2)
	return left < right
}

//go:noinline
func (w *work) descend(depth int) uint64 {
	if depth == 0 {
		var numbers [64]int
		for i := range numbers {
			numbers[i] = (i * 37) % 64
		}
		slice := numbers[:]
		sort.Slice(slice, func(i, j int) bool { return w.compareAndBurn(slice[i], slice[j]) })
		return uint64(numbers[0])
	}
	return w.descend(depth-1) + 1
}

func argument(index int, otherwise float64) float64 {
	if len(os.Args) > index {
		if value, err := strconv.ParseFloat(os.Args[index], 64); err == nil {
			return value
		}
	}
	return otherwise
}

func cpuSeconds() float64 {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

func main() {
	seconds, start := argument(1, 60), time.Now()
	byCPUTime := os.Getenv("STRATA_TARGET_CLOCK") != ""
	elapsed := func() float64 {
		if byCPUTime {
			return cpuSeconds()
		}
		return time.Since(start).Seconds()
	}
	var group sync.WaitGroup
	for i := 0; i < int(argument(2, 1)); i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			w := work{burners: [3]burner{fifty{}, thirty{}, twenty{}}, random: 42}
			for elapsed() < seconds {
				never += w.descend(7)
			}
		}()
	}
	group.Wait()
	fmt.Printf("cpu name=shares_go pid=%d seconds=%.6f\n", os.Getpid(), cpuSeconds())
}
