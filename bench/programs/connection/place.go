package main

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// awaitPlace waits until this program may run on one processor only. The bench sees to that from
// outside, thread by thread: a proc may not place its threads itself.
func awaitPlace() error {
	var set unix.CPUSet
	for {
		if err := unix.SchedGetaffinity(0, &set); err != nil {
			return os.NewSyscallError("sched_getaffinity", err)
		}
		if set.Count() == 1 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	time.Sleep(5 * time.Millisecond) // until the other threads have been placed
	return nil
}

// used is the processor time that this process has used.
func used() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
