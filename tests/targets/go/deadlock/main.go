// A program that waits for ever: its goroutines are deadlocked, and a timer keeps the runtime from
// noticing.
package main

import "time"

func main() {
	never := make(chan int)
	go func() { <-never }()
	go func() { time.Sleep(time.Hour) }()
	println("waiting")
	<-never
}
