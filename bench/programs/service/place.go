package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
)

// What the server reads: in a realm the first is among the names and the second among the files.
const (
	nameFile = "name"
	dataFile = "data"
)

// place is where the two sides find each other, and where files are.
type place interface {
	serve(ctx context.Context, s *call.Server) error
	dial(ctx context.Context) (net.Conn, error)
	read(ctx context.Context, name string) ([]byte, error)
	write(ctx context.Context, name string, data []byte) error
	own() string // the name of a file that no other process uses
}

func open(ctx context.Context, where string) (place, error) {
	files, isRealm := strings.CutPrefix(where, "sigma:")
	if !isRealm {
		return directory(where), nil
	}
	c, err := sdk.Open(ctx)
	return realm{c, files}, err
}

// realm is the place of procs.
type realm struct {
	*sdk.Client
	files string // directory
}

const endpoint = "/load-endpoint"

func (r realm) serve(ctx context.Context, s *call.Server) error {
	l, err := r.Listen(ctx, sigma.FormStream)
	if err == nil {
		err = r.Publish(ctx, endpoint, l.Endpoint(), 0)
	}
	if err == nil {
		err = r.Started(ctx)
	}
	if err != nil {
		return err
	}
	return s.Serve(ctx, l)
}

func (r realm) dial(ctx context.Context) (net.Conn, error) { return r.Dialer(endpoint).Dial(ctx, "") }

func (r realm) path(name string) string {
	if name == nameFile {
		return "/load-name"
	}
	return r.files + "/" + name
}

func (r realm) read(ctx context.Context, name string) ([]byte, error) {
	data, _, err := r.Get(ctx, r.path(name))
	return data, err
}

func (r realm) write(ctx context.Context, name string, data []byte) error {
	_, err := r.Put(ctx, r.path(name), data, sigma.PutOptions{Perm: 0o644})
	return err
}

func (r realm) own() string { return string(r.Info().Principal.Proc) }

// directory is the place of ordinary processes.
type directory string

func (d directory) socket() string { return filepath.Join(string(d), "socket") }

func (d directory) serve(ctx context.Context, s *call.Server) error {
	os.Remove(d.socket())
	l, err := net.Listen("unix", d.socket())
	if err != nil {
		return err
	}
	return s.ServeNet(ctx, l)
}

// dial waits until somebody listens.
func (d directory) dial(ctx context.Context) (net.Conn, error) {
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", d.socket())
		if err == nil {
			return c, nil
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (d directory) read(_ context.Context, name string) ([]byte, error) {
	return os.ReadFile(filepath.Join(string(d), name))
}

func (d directory) write(_ context.Context, name string, data []byte) error {
	return os.WriteFile(filepath.Join(string(d), name), data, 0o644)
}

func (d directory) own() string { return fmt.Sprint("f", os.Getpid()) }
