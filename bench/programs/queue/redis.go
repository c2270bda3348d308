package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
)

// A stream of Redis as a work queue: XADD submits, XREADGROUP acquires (what it gives stays pending
// for its consumer until it is acknowledged, and XAUTOCLAIM would give it to another), XACK ends.
// Commands of one batch are sent together. The stream keeps about as many tasks as the window has.
const (
	stream    = "tasks"
	streamMax = "20000"
	group     = "workers"
)

// redisService is a server.
type redisService struct {
	address   string
	consumers atomic.Int64 // that there were
}

func (s *redisService) member(ctx context.Context) (member, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.address)
	if err != nil {
		return nil, err
	}
	m := &redisMember{c: c, in: bufio.NewReader(c), out: bufio.NewWriter(c),
		name: fmt.Sprint("worker", s.consumers.Add(1))}
	context.AfterFunc(ctx, func() { c.Close() })
	m.send("XGROUP", "CREATE", stream, group, "$", "MKSTREAM")
	if _, err := m.answer(); err != nil && !strings.Contains(err.Error(), "BUSYGROUP") {
		return nil, err
	}
	return m, nil
}

type redisMember struct {
	c    net.Conn
	in   *bufio.Reader
	out  *bufio.Writer
	name string
}

// send writes a command; what was not written shows when its answer is read.
func (m *redisMember) send(words ...string) {
	fmt.Fprintf(m.out, "*%d\r\n", len(words))
	for _, w := range words {
		m.out.WriteByte('$')
		m.out.WriteString(strconv.Itoa(len(w)))
		m.out.WriteString("\r\n")
		m.out.WriteString(w)
		m.out.WriteString("\r\n")
	}
}

// answer reads one answer: a string, an int, nil or a slice of answers.
func (m *redisMember) answer() (any, error) {
	if err := m.out.Flush(); err != nil {
		return nil, err
	}
	line, err := m.in.ReadString('\n')
	if err != nil || len(line) < 3 {
		return nil, errors.Join(err, io.ErrUnexpectedEOF)
	}
	text := line[1 : len(line)-2]
	switch line[0] {
	case '+':
		return text, nil
	case '-':
		return nil, errors.New(text)
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return nil, err
	}
	switch {
	case line[0] == ':':
		return n, nil
	case n < 0:
		return nil, nil
	case line[0] == '$':
		b := make([]byte, n+2)
		_, err := io.ReadFull(m.in, b)
		return string(b[:n]), err
	case line[0] != '*':
		return nil, fmt.Errorf("an answer begins with %q", line[0])
	}
	all := make([]any, n)
	for i := range all {
		if all[i], err = m.answer(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (m *redisMember) submit(_ context.Context, tasks [][]byte) error {
	for _, t := range tasks {
		m.send("XADD", stream, "MAXLEN", "~", streamMax, "*", "data", string(t))
	}
	for range tasks {
		if _, err := m.answer(); err != nil {
			return err
		}
	}
	return nil
}

func (m *redisMember) work(_ context.Context, n int) (int, error) {
	m.send("XREADGROUP", "GROUP", group, m.name, "COUNT", strconv.Itoa(n), "BLOCK", "1000", "STREAMS", stream, ">")
	a, err := m.answer()
	if err != nil || a == nil {
		return 0, err
	}
	ids, err := idsOf(a)
	if err != nil {
		return 0, err
	}
	m.send(append([]string{"XACK", stream, group}, ids...)...)
	acked, err := m.answer()
	if err != nil || acked != len(ids) {
		return 0, errors.Join(err, fmt.Errorf("%v of %d tasks were acknowledged", acked, len(ids)))
	}
	return len(ids), nil
}

// idsOf takes the ids of the entries of one stream from the answer of XREADGROUP.
func idsOf(a any) (ids []string, err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("the answer of XREADGROUP is none")
		}
	}()
	for _, e := range a.([]any)[0].([]any)[1].([]any) {
		ids = append(ids, e.([]any)[0].(string))
	}
	return ids, nil
}
