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
)

// redisClient connects to a Redis, whose address is tcp:HOST:PORT or unix:PATH.
func redisClient(address string) func(context.Context) (client, error) {
	network, at, _ := strings.Cut(address, ":")
	return func(ctx context.Context) (client, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, at)
		if err != nil {
			return nil, err
		}
		return &redisConn{c: c, in: bufio.NewReader(c)}, nil
	}
}

type redisConn struct {
	c   net.Conn
	in  *bufio.Reader
	out []byte
}

// word adds a part of a command.
func (r *redisConn) word(w string) {
	r.out = append(r.out, '$')
	r.out = strconv.AppendInt(r.out, int64(len(w)), 10)
	r.out = append(r.out, '\r', '\n')
	r.out = append(r.out, w...)
	r.out = append(r.out, '\r', '\n')
}

// head sends a command and reads the first line of its answer.
func (r *redisConn) head() (string, error) {
	if _, err := r.c.Write(r.out); err != nil {
		return "", err
	}
	line, err := r.in.ReadSlice('\n')
	if err != nil || len(line) < 3 {
		return "", errors.Join(err, io.ErrUnexpectedEOF)
	}
	return string(line[:len(line)-2]), nil
}

func (r *redisConn) put(_ context.Context, key string, value []byte) error {
	r.out = append(r.out[:0], "*3\r\n$3\r\nSET\r\n"...)
	r.word(key)
	r.word(string(value))
	line, err := r.head()
	if err == nil && line != "+OK" {
		err = fmt.Errorf("SET is answered by %q", line)
	}
	return err
}

func (r *redisConn) get(_ context.Context, key string) ([]byte, error) {
	r.out = append(r.out[:0], "*2\r\n$3\r\nGET\r\n"...)
	r.word(key)
	line, err := r.head()
	if err != nil {
		return nil, err
	}
	n, err := strconv.Atoi(strings.TrimPrefix(line, "$"))
	if err != nil || n < 0 {
		return nil, fmt.Errorf("GET is answered by %q", line)
	}
	value := make([]byte, n+2)
	_, err = io.ReadFull(r.in, value)
	return value[:n], err
}
