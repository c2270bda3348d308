package main

import (
	"context"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// etcdClient connects to an etcd of one or more members, whose addresses have commas between them.
// All clients share one client of etcd's library, as programs do, and so one connection.
func etcdClient(addresses string) (func(context.Context) (client, error), error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: strings.Split(addresses, ","), Logger: zap.NewNop()})
	return func(context.Context) (client, error) { return etcdConn{c}, nil }, err
}

type etcdConn struct{ c *clientv3.Client }

func (e etcdConn) put(ctx context.Context, key string, value []byte) error {
	_, err := e.c.Put(ctx, key, string(value))
	return err
}

// get is linearizable, as that of a store of sigmaOS.
func (e etcdConn) get(ctx context.Context, key string) ([]byte, error) {
	r, err := e.c.Get(ctx, key)
	if err == nil && len(r.Kvs) != 1 {
		err = fmt.Errorf("%s has %d values", key, len(r.Kvs))
	}
	if err != nil {
		return nil, err
	}
	return r.Kvs[0].Value, nil
}
