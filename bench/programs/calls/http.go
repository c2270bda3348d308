package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

func serveHTTP(l net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		body := make([]byte, max(r.ContentLength, 0))
		if _, err := io.ReadFull(r.Body, body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Write(body)
	})
	mux.HandleFunc("/used", func(w http.ResponseWriter, _ *http.Request) { w.Write(appendUsed(nil)) })
	return http.Serve(l, mux)
}

type httpCaller struct{ http.Client }

func newHTTP(dial func(context.Context) (net.Conn, error), flight int) caller {
	return &httpCaller{http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: flight + 1,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dial(ctx)
		}}}}
}

// ask appends the answer to buf.
func (c *httpCaller) ask(ctx context.Context, path string, arg []byte, buf *bytes.Buffer) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://calls"+path, bytes.NewReader(arg))
	if err != nil {
		return err
	}
	answer, err := c.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s", answer.Status)
	}
	_, err = buf.ReadFrom(answer.Body)
	return err
}

func (c *httpCaller) worker(arg []byte) func(context.Context) error {
	var buf bytes.Buffer
	return func(ctx context.Context) error {
		buf.Reset()
		err := c.ask(ctx, "/echo", arg, &buf)
		return check(buf.Len(), len(arg), err)
	}
}

func (c *httpCaller) used(ctx context.Context) (time.Duration, error) {
	var buf bytes.Buffer
	err := c.ask(ctx, "/used", nil, &buf)
	return readUsed(buf.Bytes(), err)
}
