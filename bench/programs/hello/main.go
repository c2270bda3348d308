// Command hello prints the monotonic clock, in ns, at the first line of main.
package main

import (
	"os"
	"strconv"
	"syscall"
	"unsafe"
)

const clockMonotonic = 1

func main() {
	var t syscall.Timespec
	if _, _, no := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&t)), 0); no != 0 {
		return // the missing line tells
	}
	os.Stdout.WriteString(strconv.FormatInt(t.Nano(), 10) + "\n")
}
