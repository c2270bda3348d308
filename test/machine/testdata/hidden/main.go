// Command hidden is a proc that writes hidden files: "limit PATH" tries how large it can make one
// by a descriptor, "die PATH" ends half-way, "fill DIR" has as many descriptors for writing in a
// directory as the realm's quota gives it, makes their files as large as it can, and says how many
// they are.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

func main() {
	signal.Ignore(syscall.SIGXFSZ)
	c, err := sdk.Open(context.Background())
	if err == nil {
		err = run(context.Background(), c, os.Args[1], os.Args[2])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, c *sdk.Client, what, path string) error {
	if what == "fill" {
		return fill(ctx, c, path)
	}
	h, err := c.Create(ctx, path, sigma.OpenReadWrite|sigma.OpenHidden, 0o644)
	if err != nil {
		return err
	}
	block := bytes.Repeat([]byte("hidden "), 30_000)
	if _, err := h.Write(block); err != nil {
		return err
	}
	if what == "die" {
		os.Exit(3)
	}
	f, err := h.File()
	if err != nil {
		return err
	}
	if _, err := f.WriteAt([]byte{1}, int64(sigma.WriteDescriptorMax)-1); err != nil {
		return fmt.Errorf("up to the limit: %w", err)
	}
	if _, err := f.WriteAt([]byte{1}, int64(sigma.WriteDescriptorMax)); !errors.Is(err, syscall.EFBIG) {
		return fmt.Errorf("beyond the limit: %w", err)
	}
	if err := h.Close(); sigma.KindOf(err) != sigma.KindBusy {
		return fmt.Errorf("published with the descriptor open: %w", err)
	}
	f.Close()
	// Beyond the limit the handle goes on by messages.
	if h, err = c.Create(ctx, path, sigma.OpenWrite|sigma.OpenHidden, 0o644); err != nil {
		return err
	}
	if _, err := h.Write(block); err != nil {
		return err
	}
	if _, err := h.WriteAt(block, int64(sigma.WriteDescriptorMax)-7); err != nil {
		return err
	}
	return h.Close()
}

func fill(ctx context.Context, c *sdk.Client, dir string) error {
	var handles []sigma.Handle
	var files []*os.File
	for {
		h, err := c.Create(ctx, fmt.Sprintf("%s/%d", dir, len(handles)), sigma.OpenReadWrite|sigma.OpenHidden, 0o644)
		if err != nil {
			return err
		}
		f, err := h.File()
		if sigma.KindOf(err) == sigma.KindNoSpace {
			h.Discard()
			break
		} else if err != nil {
			return err
		}
		handles, files = append(handles, h), append(files, f)
	}
	for i, f := range files {
		if _, err := f.WriteAt([]byte{1}, int64(sigma.WriteDescriptorMax)-1); err != nil {
			return err
		}
		if _, err := f.WriteAt([]byte{1}, int64(sigma.WriteDescriptorMax)); !errors.Is(err, syscall.EFBIG) {
			return fmt.Errorf("beyond the limit: %w", err)
		}
		f.Close()
		if err := handles[i].Close(); err != nil {
			return err
		}
	}
	fmt.Println(len(files))
	return nil
}
