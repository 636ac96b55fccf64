// onoff SOCKET: a server on a Unix socket with a goroutine for each connection. "GET /burns" is answered
// after 100 ms of work, "GET /waits" after a system call that waits for 100 ms: a goroutine that waits in
// Go's own scheduler (time.Sleep, channels, the network) is on no thread.
package main

import (
	"fmt"
	"math"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

var sink float64

//go:noinline
func burns() {
	until := time.Now().Add(100 * time.Millisecond)
	sum := 0.0
	for time.Now().Before(until) {
		for i := 1; i < 1000; i++ {
			sum += math.Sqrt(float64(i))
		}
	}
	sink = sum
}

//go:noinline
func waits() {
	left := syscall.NsecToTimespec(int64(100 * time.Millisecond))
	for syscall.Nanosleep(&left, &left) == syscall.EINTR {
	}
}

func serve(connection net.Conn) {
	request := make([]byte, 256)
	for {
		length, err := connection.Read(request)
		if err != nil {
			return
		}
		if strings.HasPrefix(string(request[:length]), "GET /burns") {
			burns()
		} else {
			waits()
		}
		if _, err := connection.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")); err != nil {
			return
		}
	}
}

func main() {
	listener, err := net.Listen("unix", os.Args[1])
	if err != nil {
		panic(err)
	}
	fmt.Println("ready")
	for {
		connection, err := listener.Accept()
		if err != nil {
			panic(err)
		}
		go serve(connection)
	}
}
