// Command service is all sides of the bench lc-be, as procs of sigmaOS or as ordinary processes:
//
//	service serve PLACE                                  answers calls until it is killed
//	service call PLACE DELAY SECONDS RATE WORK_US SEED   makes calls after DELAY seconds, prints what came of them, and ends
//	service compute|files PLACE SECONDS PROCESSES        best-effort work, by so many processes
//
// PLACE is where the endpoint, the name and the files are: "sigma:DIRECTORY" for a realm with files
// in a directory of it, else a directory of the host, with a UNIX socket and ordinary files.
//
// Calls are sent at random times, whether or not those before are answered (open loop). Each has
// the server compute for WORK_US of processor time; each third has it read a name and a file of 4
// KiB first. call prints, in one line, when it began and ended (ns of the wall clock), what it and
// the server used of the processors (s), and how long each call took from the time at which it was
// to be sent (ms). Best-effort work prints what it has done so far, time and again: the time (ns),
// operations and bytes. An operation of compute takes about 0.1 ms; one of files writes 256 KiB and
// reads them.
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sdk/call"
)

var (
	workMethod = &call.Method{Name: "bench.Service/Work"}
	usedMethod = &call.Method{Name: "bench.Service/Used"}
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		panic(err)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("serve|call|compute|files PLACE ...")
	}
	p, err := open(ctx, args[1])
	if err != nil {
		return err
	}
	var n []float64
	for _, a := range args[2:] {
		v, err := strconv.ParseFloat(a, 64)
		if err != nil {
			return err
		}
		n = append(n, v)
	}
	switch does := args[0]; {
	case does == "serve" && len(n) == 0:
		return serve(ctx, p)
	case does == "call" && len(n) == 5:
		time.Sleep(seconds(n[0]))
		return load(ctx, p, seconds(n[1]), n[2], int64(n[3]*1e3), uint64(n[4]))
	case (does == "compute" || does == "files") && len(n) == 2:
		return bestEffort(ctx, p, args, seconds(n[0]), int(n[1]))
	}
	return fmt.Errorf("%q is not understood", args)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// serve answers calls. The argument of Work is how long to compute, and whether to read before.
func serve(ctx context.Context, p place) error {
	s := call.NewServer(call.Config{})
	err := s.Handle(workMethod, func(ctx context.Context, arg, reply []byte) ([]byte, error) {
		if len(arg) != 9 {
			return nil, fmt.Errorf("an argument of %d bytes", len(arg))
		}
		if arg[8] != 0 {
			for _, what := range []string{nameFile, dataFile} {
				if _, err := p.read(ctx, what); err != nil {
					return nil, err
				}
			}
		}
		compute(int64(binary.LittleEndian.Uint64(arg)))
		return append(reply, 1), nil
	})
	if err == nil {
		err = s.Handle(usedMethod, func(_ context.Context, _, reply []byte) ([]byte, error) {
			return binary.LittleEndian.AppendUint64(reply, uint64(used())), nil
		})
	}
	if err == nil {
		err = p.write(ctx, nameFile, []byte("a name's value"))
	}
	if err == nil {
		err = p.write(ctx, dataFile, make([]byte, 4<<10))
	}
	if err != nil {
		return err
	}
	return p.serve(ctx, s)
}

// compute takes ns of its thread's processor time. What it gives keeps the compiler from leaving
// the work out.
func compute(ns int64) (s uint64) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	from := threadTime()
	for threadTime()-from < ns {
		for range 2000 {
			s = s*6364136223846793005 + 1442695040888963407
		}
	}
	return s
}

func threadTime() int64 {
	var t unix.Timespec
	unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return t.Nano()
}

// used is what this process has used of the processors.
func used() time.Duration {
	var r syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// latencies are how long calls took.
type latencies struct {
	mu  sync.Mutex
	ms  []float64 // mu
	err error     // mu; the first
}

func (l *latencies) add(from time.Time, err error) {
	ms := time.Since(from).Seconds() * 1e3
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ms = append(l.ms, ms)
	if l.err == nil {
		l.err = err
	}
}

// patience is how long the server may take to begin.
const patience = 10 * time.Second

// load makes calls, and prints what came of them.
func load(ctx context.Context, p place, over time.Duration, rate float64, work int64, seed uint64) error {
	c := call.NewClient(p.dial, call.Config{})
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, over+30*time.Second)
	defer cancel()
	both := func() (time.Duration, error) {
		b, err := c.Call(ctx, usedMethod, nil, nil)
		if err != nil || len(b) != 8 {
			return 0, fmt.Errorf("the server answers with %d bytes: %w", len(b), err)
		}
		return used() + time.Duration(binary.LittleEndian.Uint64(b)), nil
	}
	before, err := both()
	for end := time.Now().Add(patience); err != nil && time.Now().Before(end); before,
		err = both() { // what an earlier server published may be there still
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		return err
	}
	begin := time.Now()
	var all latencies
	arrive(begin, over, rate, seed, func(at time.Time, n int) {
		arg := append(binary.LittleEndian.AppendUint64(nil, uint64(work)), 0)
		if n%3 == 0 {
			arg[8] = 1
		}
		_, err := c.Call(ctx, workMethod, arg, nil)
		all.add(at, err)
	})
	end := time.Now()
	after, err := both()
	if err == nil {
		err = all.err
	}
	if err != nil {
		return err
	}
	fmt.Printf("%d %d %.4f", begin.UnixNano(), end.UnixNano(), (after - before).Seconds())
	for _, ms := range all.ms {
		fmt.Printf(" %.3f", ms)
	}
	_, err = fmt.Println()
	return err
}

// arrive calls send at random times, each in a goroutine of its own, and waits for all of them. It
// sleeps by the system call, since timers of Go are late by up to a millisecond.
func arrive(begin time.Time, over time.Duration, rate float64, seed uint64, send func(at time.Time, n int)) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all sync.WaitGroup
	defer all.Wait()
	random := rand.New(rand.NewPCG(seed, 0))
	at := begin
	for n := 0; ; n++ {
		at = at.Add(seconds(-math.Log(1-random.Float64()) / rate))
		if at.Sub(begin) >= over {
			return
		}
		if wait := time.Until(at); wait > 0 {
			t := unix.NsecToTimespec(wait.Nanoseconds())
			for unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &t, &t) == unix.EINTR {
			}
		}
		due := at
		all.Go(func() { send(due, n) })
	}
}

// tell is how often best-effort work says what it has done.
const tell = 20 * time.Millisecond

// bestEffort works in this process, and in others like it.
func bestEffort(ctx context.Context, p place, args []string, over time.Duration, processes int) error {
	if processes > 1 {
		one := append(args[:len(args)-1:len(args)-1], "1")
		for range processes - 1 {
			cmd := exec.Command("/proc/self/exe", one...)
			cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			if err := cmd.Start(); err != nil {
				return err
			}
			defer cmd.Wait()
		}
	}
	operation := func() (bytes int, err error) { compute(100_000); return 0, nil }
	if args[0] == "files" {
		data, name := make([]byte, 256<<10), p.own()
		operation = func() (int, error) {
			if err := p.write(ctx, name, data); err != nil {
				return 0, err
			}
			got, err := p.read(ctx, name)
			return len(data) + len(got), err
		}
	}
	operations, bytes, told := 0, 0, time.Time{}
	for began := time.Now(); time.Since(began) < over; operations++ {
		n, err := operation()
		if err != nil {
			return err
		}
		bytes += n
		if time.Since(told) >= tell {
			told = time.Now()
			fmt.Printf("%d %d %d %d\n", os.Getpid(), told.UnixNano(), operations+1, bytes)
		}
	}
	return nil
}
