package main

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// endGrace is how long a command has to clean up after SIGINT before its whole process group is
// killed.
const endGrace = 10 * time.Second

// command is one process group that is gone when run returns.
type command struct {
	argv []string
	env  []string // added to ours
	dir  string
	// charge is told the processor time of the command and of all processes that were waited for
	// below it: not of daemons. nil = nobody is told
	charge func(time.Duration)
}

// run starts the command, gives its standard output and error, as one stream, to read, and waits.
// When ctx ends the group gets SIGINT and, endGrace later, SIGKILL. What the command left running
// in its group is killed too.
func (c command) run(ctx context.Context, read func(io.Reader)) error {
	cmd := exec.Command(c.argv[0], c.argv[1:]...)
	cmd.Dir = c.dir
	cmd.Env = append(os.Environ(), c.env...)
	// Should we be killed, the command dies with the thread that started it; Go keeps idle threads,
	// so not before.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	pr, pw, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = pw, pw
	if err := cmd.Start(); err != nil {
		pr.Close()
		pw.Close()
		return err
	}
	pw.Close()
	readDone := make(chan struct{})
	go func() {
		defer close(readDone)
		read(pr)
		io.Copy(io.Discard, pr) // a reader that stops early must not block the command
	}()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	err = c.wait(ctx, cmd.Process.Pid, ended)
	if c.charge != nil && cmd.ProcessState != nil {
		c.charge(cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime())
	}
	// A process that left the group may still hold the pipe; what it says no longer matters.
	select {
	case <-readDone:
	case <-time.After(endGrace):
	}
	pr.Close()
	<-readDone
	return err
}

func (c command) wait(ctx context.Context, pid int, ended <-chan error) error {
	kill := func() { syscall.Kill(-pid, syscall.SIGKILL) }
	defer kill()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	syscall.Kill(-pid, syscall.SIGINT)
	select {
	case <-ended:
	case <-time.After(endGrace):
		kill()
		<-ended
	}
	return ctx.Err()
}

// output runs the command and returns all it printed, bounded.
func (c command) output(ctx context.Context) (string, error) {
	var all []byte
	err := c.run(ctx, func(in io.Reader) { all, _ = io.ReadAll(io.LimitReader(in, outputMax)) })
	return string(all), err
}

// lineReader reads lines of any length; a line beyond lineMax is cut, so that nothing a test prints
// can stop the count.
type lineReader struct{ in *bufio.Reader }

const lineMax = 1 << 20

func newLineReader(in io.Reader) *lineReader {
	return &lineReader{bufio.NewReaderSize(in, 64<<10)}
}

// next returns the next line without its end; false at the end of the input.
func (l *lineReader) next() ([]byte, bool) {
	var line []byte
	for {
		chunk, more, err := l.in.ReadLine()
		if err != nil {
			return line, len(line) > 0
		}
		if room := lineMax - len(line); len(chunk) > room {
			chunk = chunk[:room]
		}
		line = append(line, chunk...)
		if !more {
			return line, true
		}
	}
}

// idleTime is how long the host's processors were idle since it booted, summed over them; 0 if
// /proc does not tell.
func idleTime() time.Duration {
	text, _ := os.ReadFile("/proc/uptime")
	_, idle, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	seconds, _ := strconv.ParseFloat(idle, 64)
	return time.Duration(seconds * float64(time.Second))
}
