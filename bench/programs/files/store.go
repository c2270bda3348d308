package main

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

func openStore(ctx context.Context, name string) (store, error) {
	kind, address, remote := strings.Cut(name, ":")
	switch {
	case kind == "s3client":
		return openObjects(ctx, address)
	case remote:
		return server{kind, address}, nil
	case kind == "native":
		return native{}, nil
	}
	c, err := sdk.Open(ctx)
	if err != nil {
		return nil, err
	}
	s := ours{ctx: ctx, c: c}
	switch kind {
	case "stream":
		s.ctx = sigma.WithSync(ctx)
	case "hidden":
		s.flags = sigma.OpenHidden
	}
	return s, nil
}

// ours is sigmaOS, seen by a proc.
type ours struct {
	ctx   context.Context
	c     *sdk.Client
	flags sigma.OpenFlags
}

func (s ours) open(path string) (io.ReadCloser, error) { return s.c.Open(s.ctx, path, sigma.OpenRead) }

func (s ours) create(path string, _ int) (io.WriteCloser, error) {
	return s.c.Create(s.ctx, path, s.flags|sigma.OpenWrite|sigma.OpenTruncate, 0o644)
}

func (s ours) get(path string) (int, error) {
	data, _, err := s.c.Get(s.ctx, path)
	return len(data), err
}

func (s ours) put(path string, data []byte) error {
	_, err := s.c.Put(s.ctx, path, data, sigma.PutOptions{})
	return err
}

// native is the host's file system. A file is written unseen, made durable and then gets its name,
// as ours are.
type native struct{}

func (native) open(path string) (io.ReadCloser, error) { return os.Open(path) }

func (native) create(path string, _ int) (io.WriteCloser, error) {
	f, err := os.Create(path + "~")
	return replacing{f, path}, err
}

func (native) get(path string) (int, error) {
	data, err := os.ReadFile(path)
	return len(data), err
}

func (native) put(path string, data []byte) error {
	if err := os.WriteFile(path+"~", data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+"~", path)
}

type replacing struct {
	*os.File
	path string
}

func (r replacing) Close() error {
	err := r.Sync()
	if e := r.File.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(r.path+"~", r.path)
	}
	return err
}

// server is a plain copy over TCP: a line says what file, then come its bytes; who writes waits for
// a byte that says that they are on the disk.
type server struct{ kind, address string }

func (s server) dial(words ...any) (net.Conn, error) {
	c, err := net.Dial("tcp", s.address)
	if err == nil && s.kind == "tls" {
		c = tls.Client(c, &tls.Config{InsecureSkipVerify: true})
	}
	if err == nil {
		_, err = fmt.Fprintln(c, words...)
	}
	return c, err
}

func (s server) open(path string) (io.ReadCloser, error) { return s.dial("read", path, 0) }

func (s server) create(path string, size int) (io.WriteCloser, error) {
	c, err := s.dial("write", path, size)
	return written{c}, err
}

func (s server) get(path string) (int, error) {
	c, err := s.open(path)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	data, err := io.ReadAll(c)
	return len(data), err
}

func (s server) put(path string, data []byte) error {
	w, err := s.create(path, len(data))
	if err == nil {
		_, err = w.Write(data)
	}
	if err == nil {
		err = w.Close()
	}
	return err
}

type written struct{ net.Conn }

func (w written) Close() error {
	_, err := io.ReadFull(w.Conn, make([]byte, 1))
	w.Conn.Close()
	return err
}

// serve serves the files of a directory.
func serve(kind, address, dir string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	if kind == "s3client" {
		return serveObjects(l)
	}
	if kind == "tls" {
		cert, err := certificate()
		if err != nil {
			return err
		}
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}})
	}
	fmt.Println("serving")
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			if err := answer(c, dir); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
	}
}

func answer(c net.Conn, dir string) error {
	r := bufio.NewReaderSize(c, 16) // what it holds is little beside what follows
	var what, name string
	var size int64
	if _, err := fmt.Fscanln(r, &what, &name, &size); err != nil {
		return err
	}
	path := filepath.Join(dir, filepath.Base(name))
	if what == "read" {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(c, f) // sendfile(2), where there is no TLS
		return err
	}
	w, err := native{}.create(path, 0)
	if err != nil {
		return err
	}
	if n := int64(r.Buffered()); n > 0 {
		if _, err := io.CopyN(w, r, n); err != nil {
			return err
		}
		size -= n
	}
	if _, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{io.LimitReader(c, size)},
		make([]byte, 1<<20)); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	_, err = c.Write([]byte{1})
	return err
}

func certificate() (tls.Certificate, error) {
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}
