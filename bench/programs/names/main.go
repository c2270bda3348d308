// Command names is the client of the bench names, as a proc of sigmaOS, and as an ordinary process
// that uses etcd or ZooKeeper:
//
//	names sigma|etcd|zookeeper ADDRESS ITEM COUNT
//
// The address of sigma is a directory, that of the others HOST:PORT. It prints one figure for each
// operation in nanoseconds; for rates the operations per second, each second; for fanout the
// nanoseconds until the last of COUNT watchers knew.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Sizes that all arms have in common.
const (
	valueBytes  = 64
	listEntries = 100
	inFlight    = 16 // of rates
	fanouts     = 5
)

// store is a service of names as the bench uses it. Paths start with / and lie in a directory of
// the run's own.
type store interface {
	// get reads as the service's own clients usually do: sigmaOS what the machine knows, etcd what
	// its majority knows, ZooKeeper what the server knows.
	get(path string) error
	// newest reads what is true now (linearizable). nil error with ok == false: the service has no
	// such read.
	newest(path string) (ok bool, err error)
	put(path string, value []byte) error
	create(path string) error
	ephemeral(path string) error
	directory(path string) error
	list(path string) (int, error)
	// rename returns false if there is none.
	rename(from, to string) (ok bool, err error)
	// watch calls ready when it watches and returns when path was changed after that.
	watch(path string, ready func()) error
	// bare is the service's cheapest round trip that touches no name; false if there is none.
	bare() (ok bool, err error)
	// clean removes the run's directory and ends.
	clean()
}

func main() {
	if len(os.Args) != 5 {
		panic("usage: names sigma|etcd|zookeeper ADDRESS ITEM COUNT")
	}
	count, err := strconv.Atoi(os.Args[4])
	if err == nil {
		err = open(os.Args[1], os.Args[2], os.Args[3], count)
	}
	if err != nil {
		panic(err)
	}
}

// open does one item at a service.
func open(service, address, item string, count int) error {
	open, known := map[string]func(context.Context, string) (store, string, error){"sigma": openSigma, "etcd": openEtcd,
		"zookeeper": openZookeeper}[service]
	if !known {
		return fmt.Errorf("no such service: %s", service)
	}
	s, dir, err := open(context.Background(), address)
	if err != nil {
		return err
	}
	defer s.clean()
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	return run(s, dir, item, count, out)
}

var value = []byte(strings.Repeat("v", valueBytes))

// run prepares and does one item. An item that the service lacks prints nothing.
func run(s store, dir, item string, count int, out *bufio.Writer) error {
	file := dir + "/file"
	if err := s.put(file, value); err != nil {
		return err
	}
	must := func(f func(i int) error) func(int) (bool, error) {
		return func(i int) (bool, error) { return true, f(i) }
	}
	ops := map[string]func(i int) (bool, error){
		"bare":      func(int) (bool, error) { return s.bare() },
		"get":       must(func(int) error { return s.get(file) }),
		"newest":    func(int) (bool, error) { return s.newest(file) },
		"put":       must(func(int) error { return s.put(file, value) }),
		"create":    must(func(i int) error { return s.create(fmt.Sprint(dir, "/c", i)) }),
		"ephemeral": must(func(i int) error { return s.ephemeral(fmt.Sprint(dir, "/e", i)) }),
		"resolve":   must(func(int) error { return s.get(dir + "/a/b/c/file") }),
		"list": must(func(int) error {
			n, err := s.list(dir + "/list")
			if err == nil && n != listEntries {
				err = fmt.Errorf("%d entries instead of %d", n, listEntries)
			}
			return err
		}),
		"rename": func(i int) (bool, error) { return s.rename(fmt.Sprint(dir, "/r", i), fmt.Sprint(dir, "/r", i+1)) },
	}
	if err := prepare(s, dir, item); err != nil {
		return err
	}
	switch {
	case item == "fanout":
		return fanout(s, file, count, out)
	case strings.HasSuffix(item, "-rate"):
		return rate(ops[strings.TrimSuffix(item, "-rate")], count, out)
	case ops[item] == nil:
		return fmt.Errorf("no such item: %s", item)
	}
	for i := range count + count/10 {
		began := time.Now()
		ok, err := ops[item](i)
		took := time.Since(began)
		if err != nil || !ok {
			return err
		}
		if i >= count/10 { // what comes before warms up
			fmt.Fprintln(out, took.Nanoseconds())
		}
	}
	return nil
}

func prepare(s store, dir, item string) error {
	switch item {
	case "resolve":
		for _, d := range []string{"/a", "/a/b", "/a/b/c"} {
			if err := s.directory(dir + d); err != nil {
				return err
			}
		}
		return s.put(dir+"/a/b/c/file", value)
	case "rename":
		return s.put(dir+"/r0", value)
	case "list":
		if err := s.directory(dir + "/list"); err != nil {
			return err
		}
		for i := range listEntries {
			if err := s.create(fmt.Sprint(dir, "/list/", i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// rate does op with inFlight at a time, for so many seconds.
func rate(op func(int) (bool, error), seconds int, out *bufio.Writer) error {
	var done atomic.Int64
	var failed atomic.Value
	var all sync.WaitGroup
	var stop atomic.Bool
	for range inFlight {
		all.Go(func() {
			for !stop.Load() {
				if _, err := op(0); err != nil {
					failed.Store(err)
					return
				}
				done.Add(1)
			}
		})
	}
	time.Sleep(200 * time.Millisecond) // warms up
	for range seconds {
		before, began := done.Load(), time.Now()
		time.Sleep(time.Second)
		fmt.Fprintf(out, "%.0f\n", float64(done.Load()-before)/time.Since(began).Seconds())
	}
	stop.Store(true)
	all.Wait()
	err, _ := failed.Load().(error)
	return err
}

// fanout measures from the start of a put until the last watcher knows.
func fanout(s store, file string, watchers int, out *bufio.Writer) error {
	for range fanouts {
		var watching, told sync.WaitGroup
		var failed atomic.Value
		watching.Add(watchers)
		for range watchers {
			told.Go(func() {
				once := sync.OnceFunc(watching.Done)
				if err := s.watch(file, once); err != nil {
					failed.Store(err)
				}
				once()
			})
		}
		watching.Wait()
		time.Sleep(100 * time.Millisecond) // requests that ready() could only announce are under way now
		began := time.Now()
		if err := s.put(file, value); err != nil {
			return err
		}
		told.Wait()
		if err, _ := failed.Load().(error); err != nil {
			return err
		}
		fmt.Fprintln(out, time.Since(began).Nanoseconds())
	}
	return nil
}
