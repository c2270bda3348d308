// Command files reads and writes files for the bench of that name, as a proc of sigmaOS or as an
// ordinary process:
//
//	files read|write|get|put STORE PATH SIZE PIECE COUNT
//	files serve tcp|tls|s3client ADDRESS DIR
//	files tree PATH
//
// STORE is sigma (files of the realm), stream (the same, by messages: without passed descriptors),
// hidden (written unseen, then published), native (files of the host), or tcp:ADDRESS and
// tls:ADDRESS (files of a server of this program) and s3client:ADDRESS (objects of one). read and
// write move SIZE bytes in pieces, one after another; get and put move them in one call. Each of
// COUNT times prints the nanoseconds of moving them, those with making them durable, and the
// processor time that this process used.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"
	"time"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
)

// store opens files; get and put move whole small ones.
type store interface {
	open(path string) (io.ReadCloser, error)
	create(path string, size int) (io.WriteCloser, error)
	get(path string) (int, error)
	put(path string, data []byte) error
}

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		panic(err)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case args[0] == "serve":
		return serve(args[1], args[2], args[3])
	case args[0] == "tree":
		return tree(ctx, args[1])
	}
	s, err := openStore(ctx, args[1])
	if err != nil {
		return err
	}
	var numbers [3]int
	for i := range numbers {
		if numbers[i], err = strconv.Atoi(args[3+i]); err != nil {
			return err
		}
	}
	size, piece, count := numbers[0], numbers[1], numbers[2]
	buf := make([]byte, piece)
	for i := range buf { // so that its pages are there
		buf[i] = byte(i)
	}
	for range count {
		cpu, at := used(), time.Now()
		moved, err := once(s, args[0], args[2], size, buf)
		if err != nil {
			return fmt.Errorf("%s of %s by %s: %w", args[0], args[2], args[1], err)
		}
		all := time.Since(at)
		if moved == 0 {
			moved = all
		}
		fmt.Println(moved.Nanoseconds(), all.Nanoseconds(), (used() - cpu).Nanoseconds())
	}
	return nil
}

// once moves the bytes. It tells when all were moved, 0 if that was at the end.
func once(s store, what, path string, size int, buf []byte) (moved time.Duration, err error) {
	at := time.Now()
	switch what {
	case "read":
		r, err := s.open(path)
		if err != nil {
			return 0, err
		}
		defer r.Close()
		got := 0
		for got < size {
			n, err := r.Read(buf)
			got += n
			if err == io.EOF {
				break
			}
			if err != nil {
				return 0, err
			}
		}
		if got < size {
			return 0, fmt.Errorf("%d of %d bytes are there", got, size)
		}
	case "write":
		w, err := s.create(path, size)
		if err != nil {
			return 0, err
		}
		for done := 0; done < size; done += len(buf) {
			if _, err := w.Write(buf[:min(len(buf), size-done)]); err != nil {
				return 0, err
			}
		}
		moved = time.Since(at)
		return moved, w.Close()
	case "get":
		n, err := s.get(path)
		if err == nil && n != size {
			err = fmt.Errorf("%d of %d bytes are there", n, size)
		}
		return 0, err
	case "put":
		return 0, s.put(path, buf[:size])
	}
	return 0, nil
}

// used is the processor time of this process.
func used() time.Duration {
	var r syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// tree serves a tree in memory.
func tree(ctx context.Context, path string) error {
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	l, err := c.Listen(ctx, sigma.FormTree)
	if err != nil {
		return err
	}
	if _, err := c.Put(ctx, path, []byte(l.Endpoint().String()),
		sigma.PutOptions{Kind: sigma.KindEndpoint}); err != nil {
		return err
	}
	if err := c.Started(ctx); err != nil {
		return err
	}
	return c.ServeTree(ctx, l, memfs.New(memfs.Config{SizeMax: 256 * sigma.MiB}))
}
