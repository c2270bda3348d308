package text

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sigmaos.dev/apps/cache/op"
	"sigmaos.dev/apps/cache/store"
)

// alone is a cache without other members.
type alone struct{ s *store.Store }

func (a alone) Do(_ context.Context, o *op.Op, buf []byte) (op.Result, error) {
	return op.Apply(a.s, o, store.Now(), buf)
}
func (a alone) Flush(context.Context) error { a.s.Flush(); return nil }
func (a alone) Store() *store.Store         { return a.s }

func newServer(t testing.TB, cfg Config) *Server {
	t.Helper()
	st, err := store.New(store.Config{Limit: store.LimitMin})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	cfg.Backend = alone{st}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// connect gives a connection to a server.
func connect(t testing.TB, s *Server) net.Conn {
	client, server := net.Pipe()
	go s.ServeConn(context.Background(), server, nil)
	t.Cleanup(func() { client.Close() })
	return client
}

// say sends some text, and gives all that comes back until the connection ends.
func say(t testing.TB, s *Server, text string) string {
	t.Helper()
	c := connect(t, s)
	go func() {
		c.Write([]byte(text))
		c.Write([]byte("\r\n")) // ends a line that has none; nobody may read it
	}()
	c.SetReadDeadline(time.Now().Add(20 * time.Second))
	b, err := io.ReadAll(c)
	if err != nil && !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("after %.60q: %v", text, err)
	}
	return string(b)
}

// array writes words as a command of RESP.
func array(words ...string) string {
	b := fmt.Sprintf("*%d\r\n", len(words))
	for _, w := range words {
		b += fmt.Sprintf("$%d\r\n%s\r\n", len(w), w)
	}
	return b
}

// Goal: each command of RESP is answered as Redis does.
func TestRESP(t *testing.T) {
	s := newServer(t, Config{})
	for _, c := range []struct{ say, want string }{
		{"PING", "+PONG"}, {"ECHO hi", "$2\r\nhi"}, {"SET k v", "+OK"}, {"GET k", "$1\r\nv"}, {"get k", "$1\r\nv"},
		{"GET none", "$-1"}, {"SET k w NX", "$-1"}, {"SET none w XX", "$-1"}, {"SET k w XX GET", "$1\r\nv"},
		{"SET k v EX 0", "-ERR invalid expire time in 'set' command"},
		{"SET k v EX x", "-ERR value is not an integer or out of range"},
		{"SET k v EX 10 PX 10", "-ERR syntax error"}, {"SET k v NX XX", "-ERR syntax error"},
		{"SET k v ZZ", "-ERR syntax error"},
		{"SET k v EX", "-ERR syntax error"},
		{"SET k v EX 9223372036854775807", "-ERR invalid expire time in 'set' command"},
		{"SET k v EX 100", "+OK"}, {"TTL k", ":100"}, {"SET k x KEEPTTL", "+OK"}, {"TTL k", ":100"},
		{"PERSIST k", ":1"},
		{"PERSIST k", ":0"}, {"TTL k", ":-1"}, {"TTL none", ":-2"}, {"EXPIRE k 50", ":1"}, {"EXPIRE none 50", ":0"},
		{"PEXPIRE k 60000", ":1"}, {"TTL k", ":60"}, {"EXPIRE k -1", ":1"}, {"EXISTS k", ":0"}, {"SETNX k 1", ":1"},
		{"SETNX k 1", ":0"}, {"INCR k", ":2"}, {"DECR k", ":1"}, {"INCRBY k 41", ":42"}, {"DECRBY k 2", ":40"},
		{"INCRBY k x", "-ERR value is not an integer or out of range"},
		{"DECRBY k -9223372036854775808", "-ERR value is not an integer or out of range"},
		{"INCRBY k 9223372036854775807", "-ERR increment or decrement would overflow"}, {"APPEND k abc", ":5"},
		{"STRLEN k", ":5"},
		{"STRLEN none", ":0"}, {"INCR k", "-ERR value is not an integer or out of range"},
		{"GETSET k z", "$5\r\n40abc"},
		{"GETDEL k", "$1\r\nz"}, {"GETDEL k", "$-1"}, {"SETEX k 10 v", "+OK"},
		{"SETEX k -1 v", "-ERR invalid expire time in 'setex' command"},
		{"PSETEX k 5000 v", "+OK"}, {"TTL k", ":5"}, {"TYPE k", "+string"}, {"TYPE none", "+none"},
		{"MSET a 1 b 2", "+OK"}, {"MSET a", "-ERR wrong number of arguments for 'mset' command"},
		{"MGET a none b", "*3\r\n$1\r\n1\r\n$-1\r\n$1\r\n2"}, {"EXISTS a b a none", ":3"}, {"DEL a b none", ":2"},
		{"DBSIZE", ":1"},
		{"SCAN 0", "*2\r\n$1\r\n0\r\n*1\r\n$1\r\nk"}, {"SCAN 0 MATCH x*", "*2\r\n$1\r\n0\r\n*0"},
		{"SCAN x", "-ERR invalid cursor"},
		{"SELECT 0", "+OK"}, {"SELECT 1", "-ERR DB index is out of range: there is 0 only"},
		{"CLIENT SETNAME x", "+OK"},
		{"HELLO 3", "-NOPROTO unsupported protocol version"}, {"COMMAND DOCS", "*0"},
		{"CONFIG GET appendonly", "*2\r\n$10\r\nappendonly\r\n$2\r\nno"},
		{"CONFIG GET" + strings.Repeat(" *", 17), "-ERR too many patterns"},
		{"FLUSHALL", "+OK"}, {"DBSIZE", ":0"}, {"NONE", "-ERR unknown command 'NONE'"},
		{"GET", "-ERR wrong number of arguments for 'get' command"},
	} {
		words := array(strings.Fields(c.say)...)
		if got := say(t, s, words+"QUIT\r\n"); got != c.want+"\r\n+OK\r\n" {
			t.Errorf("%s: %q, want %q", c.say, got, c.want)
		}
	}
}

// Goal: each command of memcached's is answered as memcached does.
func TestMemcached(t *testing.T) {
	s := newServer(t, Config{})
	for _, c := range []struct{ say, want string }{
		{"get k", "END"}, {"set k 7 0 1\r\nv", "STORED"}, {"get k none", "VALUE k 7 1\r\nv\r\nEND"},
		{"add k 0 0 1\r\nw", "NOT_STORED"},
		{"replace none 0 0 1\r\nw", "NOT_STORED"}, {"append k 0 0 2\r\nab", "STORED"},
		{"prepend k 0 0 1\r\nc", "STORED"},
		{"get k", "VALUE k 7 4\r\ncvab\r\nEND"}, {"append none 0 0 1\r\na", "NOT_STORED"},
		{"cas none 0 0 1 1\r\na", "NOT_FOUND"},
		{"cas k 0 0 1 1\r\na", "EXISTS"}, {"delete none", "NOT_FOUND"}, {"delete k", "DELETED"},
		{"incr k 1", "NOT_FOUND"},
		{"set k 0 0 2\r\n10", "STORED"}, {"incr k 5", "15"}, {"decr k 20", "0"},
		{"incr k x", "CLIENT_ERROR invalid numeric delta argument"},
		{"set k 0 0 1 noreply\r\nx", ""}, {"incr k 1", "CLIENT_ERROR cannot increment or decrement non-numeric value"},
		{"touch k 100", "TOUCHED"}, {"touch none 100", "NOT_FOUND"}, {"gat 100 k", "VALUE k 0 1\r\nx\r\nEND"},
		{"touch k -1", "TOUCHED"}, {"get k", "END"}, {"set k 0 0 0\r\n", "STORED"}, {"get k", "VALUE k 0 0\r\n\r\nEND"},
		{"set " + strings.Repeat("k", 251) + " 0 0 1\r\nx", "CLIENT_ERROR bad key"}, {"verbosity 1", "OK"},
		{"flush_all", "OK"},
		{"get k", "END"}, {"nothing", "ERROR"}, {"version", "VERSION " + cachedVersion}, {"flush_all noreply", ""},
		{"get", "ERROR"},
		{"set k 0 0 9000000\r\n" + strings.Repeat("x", 9_000_000), "SERVER_ERROR object too large for cache"},
	} {
		want := c.want + "\r\n"
		if c.want == "" {
			want = ""
		}
		if got := say(t, s, c.say+"\r\nquit\r\n"); got != want {
			t.Errorf("%.60s: %q, want %q", c.say, got, c.want)
		}
	}
	text := say(t, s, "set k 0 0 1\r\nv\r\ngets k\r\nquit\r\n")
	var version uint64
	if _, err := fmt.Sscanf(text, "STORED\r\nVALUE k 0 1 %d\r\n", &version); err != nil {
		t.Fatal(text, err)
	}
	if got := say(t, s, fmt.Sprintf("cas k 0 0 1 %d\r\nw\r\nstats\r\nquit\r\n", version)); !strings.HasPrefix(got,
		"STORED\r\nSTAT pid") || !strings.Contains(got, "STAT curr_items 1\r\n") {
		t.Error(got)
	}
}

// Goal: what is no command gets an error, and ends the connection if the next one cannot be found.
func TestMalformed(t *testing.T) {
	s := newServer(t, Config{LongMax: 1 << 20})
	for what, c := range map[string]struct{ say, want string }{
		"another protocol":    {"\x16\x03\x01", "-ERR this is neither"},
		"a bad count":         {"*x\r\n", "-ERR Protocol error: invalid length"},
		"a count without end": {"*" + strings.Repeat("1", 100), "-ERR Protocol error: too big count string"},
		"too many arguments":  {"*1000000\r\n", "-ERR Protocol error: invalid multibulk length"},
		"no bulk":             {"*1\r\nGET\r\n", "-ERR Protocol error: expected '$'"},
		"a negative bulk":     {"*1\r\n$-1\r\n", "-ERR Protocol error: invalid bulk length"},
		"64 MiB": {"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$67108864\r\n",
			"-ERR Protocol error: invalid bulk length"},
		"a bulk that is long": {"*1\r\n$1\r\nPING\r\n",
			"-ERR Protocol error: a bulk string has another length than it says"},
		"a web page": {"POST / HTTP/1.1\r\nHost: x\r\n\r\nSET k v\r\n",
			"-ERR Protocol error: this is not HTTP"},
		"its next line":        {"Host: x\r\n\r\nSET k v\r\n", "-ERR Protocol error: this is not HTTP"},
		"an endless word":      {"P" + strings.Repeat("I", 70_000), "-ERR Protocol error: too big inline request"},
		"an endless line":      {"get " + strings.Repeat("k", 70_000), "CLIENT_ERROR line is too long"},
		"a value without end":  {"set k 0 0 1\r\nxyz\r\n", "CLIENT_ERROR bad data chunk"},
		"a value without size": {"set k 0 0 x\r\n", "CLIENT_ERROR bad command line format"},
		"a negative size":      {"set k 0 0 -1\r\n", "CLIENT_ERROR bad command line format"},
		"2 GiB and more":       {"set k 0 0 4294967296\r\n", "CLIENT_ERROR bad command line format"},
		"too few words":        {"set k 0\r\n", "ERROR"},
		"too much on its way": {"*4\r\n$4\r\nMSET\r\n" +
			strings.Repeat("$400000\r\n"+strings.Repeat("x", 400_000)+"\r\n", 3),
			"-ERR too many long commands"},
	} {
		if got := say(t, s, c.say); !strings.HasPrefix(got, c.want) || strings.Count(got, "\n") != 1 {
			t.Errorf("%s: %.100q, want %q", what, got, c.want)
		}
	}
	if n := s.long.Load(); n != 0 {
		t.Errorf("%d bytes of long commands are held by nobody", n)
	}
}

// Goal: commands that come in small pieces, and many at a time, are answered all the same.
func TestPieces(t *testing.T) {
	s := newServer(t, Config{})
	value := strings.Repeat("v", 100_000)
	text := array("SET", "long", value) + array("GET", "long") + array("STRLEN", "long") + "QUIT\r\n"
	want := fmt.Sprintf("+OK\r\n$%d\r\n%s\r\n:%d\r\n+OK\r\n", len(value), value, len(value))
	for _, piece := range []int{997, 1 << 20} {
		c := connect(t, s)
		go func() {
			for rest := text; rest != ""; rest = rest[min(piece, len(rest)):] {
				io.WriteString(c, rest[:min(piece, len(rest))])
			}
		}()
		if got, _ := io.ReadAll(c); string(got) != want {
			t.Errorf("pieces of %d: %d bytes, want %d", piece, len(got), len(want))
		}
	}
	many := strings.Repeat(array("PING"), 20_000)
	if got := say(t, s, many+"QUIT\r\n"); got != strings.Repeat("+PONG\r\n", 20_000)+"+OK\r\n" {
		t.Errorf("%d bytes of answers", len(got))
	}
}

// Goal: a client that sends half a command, or never reads, is disconnected, and one that is silent
// is not. There are no more connections than allowed.
func TestStallsAndCrowds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, Config{ConnsMax: 2})
		half, silent := connect(t, s), connect(t, s)
		io.WriteString(half, "*2\r\n$3\r\nGE")
		synctest.Wait()
		third := connect(t, s)
		if b, _ := io.ReadAll(third); string(b) != "-ERR max number of clients reached\r\n" {
			t.Errorf("the third got %q", b)
		}
		half.SetReadDeadline(time.Now().Add(2 * stallMax))
		if _, err := half.Read(make([]byte, 1)); err != io.EOF {
			t.Error("half a command:", err)
		}
		deaf := connect(t, s)
		go io.Copy(deaf, io.LimitReader(repeat(array("PING")), 1<<20))
		time.Sleep(2 * stallMax) // in the bubble's time
		if _, err := io.ReadAll(deaf); err != nil {
			t.Error("a client that did not read:", err)
		}
		silent.SetReadDeadline(time.Now().Add(time.Hour))
		if _, err := silent.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("a silent client:", err)
		}
		silent.SetReadDeadline(time.Time{})
		s.Shutdown(t.Context())
		if _, err := silent.Read(make([]byte, 1)); err != io.EOF {
			t.Error("after the end:", err)
		}
	})
}

// Goal: the same over TCP, where the socket is read and written in another way: a client that
// pipelines without reading holds nothing up but itself, and half-closed ones get all answers.
func TestTCP(t *testing.T) {
	s := newServer(t, Config{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(context.Background(), l) }()
	dial := func() *net.TCPConn {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(30 * time.Second))
		t.Cleanup(func() { c.Close() })
		return c.(*net.TCPConn)
	}
	deaf := dial()
	value := strings.Repeat("v", 200_000)
	go io.WriteString(deaf, array("SET", "k", value)+strings.Repeat(array("GET", "k"), 200)) // 40 MB of answers
	c := dial()
	for i := range 1000 {
		fmt.Fprintf(c, "INCR n\r\n")
		want := fmt.Sprintf(":%d\r\n", i+1)
		if _, err := io.ReadFull(c, make([]byte, len(want))); err != nil {
			t.Fatal(err)
		}
	}
	c.SetReadDeadline(time.Now().Add(confirmAfter + confirmAfter/4))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) { // it is silent for a while
		t.Fatal(err)
	}
	c.SetReadDeadline(time.Now().Add(30 * time.Second))
	go func() {
		io.WriteString(c, strings.Repeat(array("STRLEN", "k"), 50_000))
		c.CloseWrite()
	}()
	if b, err := io.ReadAll(c); err != nil || len(b) != 50_000*len(":200000\r\n") {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	if n, err := io.Copy(io.Discard, io.LimitReader(deaf, 40_000_000)); n != 40_000_000 {
		t.Errorf("the client that did not read first got %d bytes, %v", n, err)
	}
	l.Close()
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	s.Shutdown(t.Context())
	if _, err := deaf.Read(make([]byte, 1<<20)); err == nil {
		io.Copy(io.Discard, deaf)
	}
}

// repeat reads the same text without end.
type repeat string

func (r repeat) Read(b []byte) (int, error) {
	n := 0
	for n+len(r) <= len(b) {
		n += copy(b[n:], r)
	}
	return n, nil
}

// FuzzCommands: whatever is sent, however it is cut, is answered the same, without a panic.
func FuzzCommands(f *testing.F) {
	for _, text := range []string{array("SET", "k", "v") + array("GET", "k"), "PING\r\nSET k v\r\n", "*1\r\n$-1\r\n",
		"*0\r\n*-1\r\n",
		"set k 0 0 1\r\nv\r\nget k\r\n", "cas k 0 0 1 18446744073709551616\r\nv\r\n", "gat 1\r\n", "touch\r\n",
		"set k 0 0 9999999\r\nx",
		"incr k\r\ndelete\r\nflush_all 5\r\nstats x\r\n", array("SCAN", "0", "MATCH", "[", "COUNT", "-1"),
		array("SET", "k", "v", "EX"),
		array("MSET", "k"), array("CONFIG", "GET", "["), array("CLIENT", ""), array("")} {
		f.Add([]byte(text), uint8(7))
	}
	s := newServer(f, Config{})
	f.Fuzz(func(t *testing.T, text []byte, cut uint8) {
		answers := func(pieces int) []byte {
			s.cfg.Backend.Store().Flush()
			sink := &memory{}
			c := &conn{server: s, nc: sink, ctx: t.Context(), fd: -1, in: make([]byte, bufferFirst)}
			for rest := text; len(rest) > 0; {
				n := min(pieces, len(rest))
				if c.makeRoom() != nil {
					break
				}
				n = copy(c.in[c.w:], rest[:n])
				c.w, rest, c.now = c.w+n, rest[n:], 1_000_000
				if c.execute() != nil {
					break
				}
			}
			c.flush()
			return sink.Bytes()
		}
		whole, cutUp := answers(len(text)), answers(int(cut)+1)
		if !bytes.Contains(whole, []byte("STAT")) && !bytes.Contains(whole, []byte("used_memory")) &&
			!bytes.Contains(whole, []byte("VALUE")) && !bytes.Equal(whole, cutUp) {
			t.Errorf("%q is answered by %q, and in pieces by %q", text, whole, cutUp)
		}
	})
}

// memory is a connection that keeps what is written.
type memory struct {
	net.Conn
	bytes.Buffer
}

func (m *memory) Write(b []byte) (int, error)      { return m.Buffer.Write(b) }
func (m *memory) Read([]byte) (int, error)         { return 0, io.EOF }
func (m *memory) SetWriteDeadline(time.Time) error { return nil }
func (m *memory) RemoteAddr() net.Addr             { return &net.UnixAddr{} }
