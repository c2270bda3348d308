package text

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// served gives a connection with the server's side of it, which may be looked at when it waits.
func served(t *testing.T, s *Server) (net.Conn, *conn) {
	old := map[*conn]bool{}
	for c := range s.conns {
		old[c] = true
	}
	nc := connect(t, s)
	synctest.Wait()
	for c := range s.conns {
		if !old[c] {
			return nc, c
		}
	}
	t.Fatal("the connection is not served")
	return nil, nil
}

// Goal: values that clients asked for and do not read are bounded for all connections together.
func TestUnreadValues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, Config{LongMax: 1 << 20})
		say(t, s, array("SET", "k", strings.Repeat("v", 300_000))+"QUIT\r\n")
		var all []net.Conn
		for range 10 {
			c := connect(t, s)
			io.WriteString(c, array("GET", "k"))
			all = append(all, c)
		}
		synctest.Wait()
		if n := s.long.Load(); n < 600_000 || n > 1<<20 {
			t.Errorf("%d bytes are held", n)
		}
		refused := 0
		for _, c := range all {
			if line, _ := bufio.NewReader(c).ReadString('\n'); strings.HasPrefix(line, "-ERR too many long values") {
				refused++
			} else if line != "$300000\r\n" {
				t.Errorf("got %q", line)
			}
			c.Close()
		}
		if synctest.Wait(); refused < 6 || s.long.Load() != 0 {
			t.Errorf("%d were refused; afterwards %d bytes are held", refused, s.long.Load())
		}
	})
}

// Goal: a connection that is silent holds its first buffer only, and works afterwards.
func TestRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, Config{})
		for _, text := range []string{"set k 0 0 60000\r\n" + strings.Repeat("x", 60_000) + "\r\nget k" +
			strings.Repeat(" k a", 10) + "\r\n", array("SET", "k", strings.Repeat("x", 60_000)) + array("GET", "k")} {
			nc, c := served(t, s)
			go io.Copy(io.Discard, nc)
			for range 2 {
				io.WriteString(nc, text)
				if synctest.Wait(); cap(c.value) < 60_000 || cap(c.out) < 60_000 || len(c.in) < 60_000 {
					t.Error("the memory is not in use: the test tests nothing")
				}
				time.Sleep(2 * confirmAfter) // in the bubble's time
				if len(c.in) != bufferFirst || cap(c.out) > 0 || cap(c.value) > 0 {
					t.Errorf("held: %d, %d, %d", len(c.in), cap(c.out), cap(c.value))
				}
			}
			nc.Close()
		}
	})
}

// Goal: who sends a command byte by byte is cut as if silent, and what it has announced takes no
// memory. Who sends a long one slowly but steadily is served, and who reads so gets all answers.
func TestSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, Config{})
		began := time.Now()
		nc, c := served(t, s)
		_, err := fmt.Fprintf(nc, "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n", 500_000)
		for err == nil {
			if len(c.in) != bufferFirst {
				t.Fatalf("%d bytes are held", len(c.in))
			}
			time.Sleep(2 * time.Second) // in the bubble's time
			_, err = nc.Write([]byte("x"))
		}
		if took := time.Since(began); took > stallMax+5*time.Second {
			t.Errorf("it was cut after %v", took)
		}

		const values = 20 // of 300 KB, one in 6 s
		nc, _ = served(t, s)
		answer := make(chan string)
		go func() {
			line, _ := bufio.NewReader(nc).ReadString('\n')
			answer <- line
		}()
		fmt.Fprintf(nc, "*%d\r\n$4\r\nMSET\r\n", 1+2*values)
		for i := range values {
			fmt.Fprintf(nc, "$2\r\n%02d\r\n$300000\r\n%s\r\n", i, bytes.Repeat([]byte("v"), 300_000))
			time.Sleep(6 * time.Second)
		}
		if line := <-answer; line != "+OK\r\n" {
			t.Errorf("a slow command got %q", line)
		}
		go io.WriteString(nc, strings.Repeat(array("GET", "19"), 20)+"QUIT\r\n")
		n, piece := 0, make([]byte, 64<<10)
		for err = nil; err == nil; time.Sleep(time.Second) {
			var m int
			m, err = nc.Read(piece)
			n += m
		}
		if want := 20*len("$300000\r\n\r\n") + 20*300_000 + len("+OK\r\n"); n != want {
			t.Errorf("a slow reader got %d bytes, want %d", n, want)
		}
	})
}

// Goal: one answer of SCAN has few bytes however long keys and COUNT are, and all keys are told.
func TestLongScan(t *testing.T) {
	s := newServer(t, Config{})
	const keys = 200
	for i := range keys {
		say(t, s, array("SET", fmt.Sprintf("%03d%s", i, strings.Repeat("k", 4000)), "v")+"QUIT\r\n")
	}
	told, cursor := map[string]bool{}, "0"
	for first := true; first || cursor != "0"; first = false {
		answer := say(t, s, array("SCAN", cursor, "COUNT", "1000")+"QUIT\r\n")
		if len(answer) > 4*scanBytes {
			t.Fatalf("an answer of %d bytes", len(answer))
		}
		lines := strings.Split(answer, "\r\n")
		cursor = lines[2]
		for _, line := range lines[3:] {
			if len(line) == 4003 {
				told[line] = true
			}
		}
	}
	if len(told) != keys {
		t.Errorf("%d keys were told, want %d", len(told), keys)
	}
}

// Goal: there are no more connections than the process may have files for.
func TestConnsDefault(t *testing.T) {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	few := files
	few.Cur = 4096
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Skip("the limit of files cannot be changed:", err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &files)
	if n := newServer(t, Config{}).ConnsMax(); n != 3072 {
		t.Errorf("%d connections, want 3072", n)
	}
	if n := newServer(t, Config{ConnsMax: 5}).ConnsMax(); n != 5 {
		t.Errorf("%d connections, want 5", n)
	}
}
