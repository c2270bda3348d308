package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGUSR1)
	c := make(chan int)
	go func() { time.Sleep(time.Millisecond); c <- 7 }()
	os.Open("/etc/passwd")
	fmt.Println("hello go", <-c)
}
