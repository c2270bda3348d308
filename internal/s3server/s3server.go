// Package s3server gives tests an object store of S3's kind: a process of its own on this host's
// loopback, and before it, on request, a proxy that does wrong what networks and stores do wrong.
//
// The process is the test binary itself, which its TestMain turns into gofakes3 by Main: nothing
// has to be built or fetched for it, and it can be killed. Where SIGMA_TEST_VERSITYGW names that
// program, it is used instead, which checks signatures and keeps objects in files. The tests of s3
// and of the whole machine use it.
package s3server

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// What opens the store.
const (
	AccessKey = "test-access"
	SecretKey = "test-secret-that-nobody-may-read"
	Bucket    = "objects"
)

const (
	serveEnv = "SIGMA_TEST_S3_SERVE"
	realEnv  = "SIGMA_TEST_VERSITYGW"
)

// Main runs the tests, or the store if this process was started as one. It returns the exit code.
func Main(m *testing.M) int { return Or(m.Run) }

// Or is Main for packages whose tests are run by run.
func Or(run func() int) int {
	if os.Getenv(serveEnv) == "" {
		return run()
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(l.Addr())
	go func() { // it ends with who started it
		io.Copy(io.Discard, os.Stdin)
		l.Close()
	}()
	store := gofakes3.New(s3mem.New(), gofakes3.WithLogger(gofakes3.DiscardLog()), gofakes3.WithTimeSkewLimit(0))
	http.Serve(l, store.Server())
	return 0
}

// Server is a running store.
type Server struct {
	Address string // HOST:PORT
	Client  *minio.Core
	cmd     *exec.Cmd
	stdin   io.Closer
	exited  chan struct{}
}

// URL is where the bucket is.
func (s *Server) URL() string { return "http://" + s.Address + "/" + Bucket }

// Start starts a store with an empty bucket.
func Start(t testing.TB) *Server {
	t.Helper()
	s := &Server{exited: make(chan struct{})}
	var err error
	if program := os.Getenv(realEnv); program != "" {
		err = s.startReal(t, program)
	} else {
		err = s.startOwn()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	s.Client, err = minio.NewCore(s.Address, &minio.Options{Creds: credentials.NewStaticV4(AccessKey, SecretKey, ""),
		Region: "us-east-1"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		if err = s.Client.MakeBucket(ctx, Bucket, minio.MakeBucketOptions{}); err == nil {
			return s
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			t.Fatal(err)
		}
	}
}

func (s *Server) startOwn() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	s.cmd = exec.Command(self)
	s.cmd.Env = append(os.Environ(), serveEnv+"=1")
	in, err := s.cmd.StdinPipe()
	if err != nil {
		return err
	}
	s.stdin = in
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := s.run(); err != nil {
		return err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	s.Address = strings.TrimSpace(line)
	return err
}

func (s *Server) startReal(t testing.TB, program string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.Address = l.Addr().String()
	l.Close()
	s.cmd = exec.Command(program, "--port", s.Address, "--access", AccessKey, "--secret", SecretKey, "--quiet",
		"--keep-alive", "posix", t.TempDir())
	return s.run()
}

func (s *Server) run() error {
	if err := s.cmd.Start(); err != nil {
		return err
	}
	go func() {
		s.cmd.Wait()
		close(s.exited)
	}()
	return nil
}

// Stop kills the store.
func (s *Server) Stop() {
	s.cmd.Process.Kill()
	<-s.exited
	if s.stdin != nil {
		s.stdin.Close()
	}
}

// Freeze stops the store as it stands, and Thaw lets it go on.
func (s *Server) Freeze() { s.cmd.Process.Signal(syscall.SIGSTOP) }

// Thaw undoes Freeze.
func (s *Server) Thaw() { s.cmd.Process.Signal(syscall.SIGCONT) }

// Object is what the store has at a key; "" if there is nothing.
func (s *Server) Object(t testing.TB, key string) string {
	t.Helper()
	if key == "" {
		return ""
	}
	body, _, _, err := s.Client.GetObject(t.Context(), Bucket, key, minio.GetObjectOptions{})
	if minio.ToErrorResponse(err).StatusCode == http.StatusNotFound {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	text, err := io.ReadAll(body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
