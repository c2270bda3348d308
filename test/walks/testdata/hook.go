// The test adds this file to the main package of each daemon that it builds; no ordinary build has
// it. On SIGUSR1 the daemon writes how often its code ran since the last
// time to /data/walks/N, N counted from 0.

package main

import (
	"fmt"
	"os"
	"os/signal"
	"runtime/coverage"
	"strconv"
	"syscall"
)

func init() {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR1)
	go func() {
		for n := 0; ; n++ {
			<-asked
			if err := writeCounts("/data/walks/" + strconv.Itoa(n)); err != nil {
				fmt.Fprintln(os.Stderr, "walks:", err)
			}
		}
	}()
}

// writeCounts makes dir, which is there once all is in it.
func writeCounts(dir string) error {
	part := dir + ".part"
	if err := os.MkdirAll(part, 0o755); err != nil {
		return err
	}
	if err := coverage.WriteMetaDir(part); err != nil {
		return err
	}
	if err := coverage.WriteCountersDir(part); err != nil {
		return err
	}
	if err := coverage.ClearCounters(); err != nil {
		return err
	}
	return os.Rename(part, dir)
}
