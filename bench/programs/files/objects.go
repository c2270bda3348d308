package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// bucket is where the objects of the peer are.
const bucket = "files"

// serveObjects serves objects in memory.
func serveObjects(l net.Listener) error {
	back := s3mem.New()
	if err := back.CreateBucket(bucket); err != nil {
		return err
	}
	fmt.Println("serving")
	return http.Serve(l, gofakes3.New(back, gofakes3.WithLogger(gofakes3.DiscardLog())).Server())
}

// objects is what people use: an S3 client.
type objects struct {
	ctx context.Context
	c   *minio.Client
}

func openObjects(ctx context.Context, address string) (store, error) {
	c, err := minio.New(address, &minio.Options{Creds: credentials.NewStaticV4("bench", "bench", ""),
		BucketLookup: minio.BucketLookupPath})
	return objects{ctx, c}, err
}

func (o objects) open(path string) (io.ReadCloser, error) {
	return o.c.GetObject(o.ctx, bucket, filepath.Base(path), minio.GetObjectOptions{})
}

func (o objects) create(path string, size int) (io.WriteCloser, error) {
	r, w := io.Pipe()
	u := &uploading{w, make(chan error, 1)}
	go func() {
		_, err := o.c.PutObject(o.ctx, bucket, filepath.Base(path), r, int64(size),
			minio.PutObjectOptions{DisableMultipart: true})
		r.CloseWithError(err)
		u.done <- err
	}()
	return u, nil
}

func (o objects) get(path string) (int, error) {
	r, err := o.open(path)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	return len(data), err
}

func (o objects) put(path string, data []byte) error {
	w, err := o.create(path, len(data))
	if err == nil {
		_, err = w.Write(data)
	}
	if err == nil {
		err = w.Close()
	}
	return err
}

// uploading is an object that is being written. It is there when Close has returned.
type uploading struct {
	*io.PipeWriter
	done chan error
}

func (u *uploading) Close() error {
	u.PipeWriter.Close()
	return <-u.done
}
