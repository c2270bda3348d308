package main

import (
	"context"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// etcd is etcd, by its own client.
type etcd struct {
	ctx   context.Context
	c     *clientv3.Client
	dir   string
	lease clientv3.LeaseID
}

func openEtcd(ctx context.Context, address string) (store, string, error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, DialTimeout: 10 * time.Second})
	if err != nil {
		return nil, "", err
	}
	lease, err := c.Grant(ctx, 30)
	if err != nil {
		return nil, "", err
	}
	dir := "/bench/" + time.Now().Format("150405.000000")
	return &etcd{ctx, c, dir, lease.ID}, dir, nil
}

func (e *etcd) get(path string) error {
	r, err := e.c.Get(e.ctx, path)
	if err == nil && len(r.Kvs) != 1 {
		err = fmt.Errorf("%s is not there", path)
	}
	return err
}

func (e *etcd) newest(path string) (bool, error) { return true, e.get(path) }

func (e *etcd) put(path string, value []byte) error {
	_, err := e.c.Put(e.ctx, path, string(value))
	return err
}

func (e *etcd) create(path string) error { return e.make(clientv3.OpPut(path, string(value)), path) }

func (e *etcd) make(put clientv3.Op, path string) error {
	r, err := e.c.Txn(e.ctx).If(clientv3.Compare(clientv3.CreateRevision(path), "=", 0)).Then(put).Commit()
	if err == nil && !r.Succeeded {
		err = fmt.Errorf("%s is there", path)
	}
	return err
}

func (e *etcd) ephemeral(path string) error {
	return e.make(clientv3.OpPut(path, string(value), clientv3.WithLease(e.lease)), path)
}

func (e *etcd) directory(string) error { return nil } // it has none

func (e *etcd) list(path string) (int, error) {
	r, err := e.c.Get(e.ctx, path+"/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return 0, err
	}
	return len(r.Kvs), nil
}

// rename moves one key, as a program that keeps files in etcd does.
func (e *etcd) rename(from, to string) (bool, error) {
	r, err := e.c.Txn(e.ctx).If(clientv3.Compare(clientv3.CreateRevision(from), ">", 0)).Then(clientv3.OpDelete(from),
		clientv3.OpPut(to, string(value))).Commit()
	if err == nil && !r.Succeeded {
		err = fmt.Errorf("%s is not there", from)
	}
	return true, err
}

func (e *etcd) watch(path string, ready func()) error {
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	for r := range e.c.Watch(ctx, path, clientv3.WithCreatedNotify()) {
		if err := r.Err(); err != nil {
			return err
		}
		if r.Created {
			ready()
		}
		if len(r.Events) > 0 {
			return nil
		}
	}
	return fmt.Errorf("the watch ended")
}

func (e *etcd) bare() (bool, error) { return false, nil }

func (e *etcd) clean() {
	e.c.Delete(e.ctx, e.dir+"/", clientv3.WithPrefix())
	e.c.Revoke(e.ctx, e.lease)
	e.c.Close()
}

// zookeeper is ZooKeeper, by the usual client of Go.
type zookeeper struct {
	c   *zk.Conn
	dir string
}

func openZookeeper(_ context.Context, address string) (store, string, error) {
	c, events, err := zk.Connect([]string{address}, 30*time.Second, zk.WithLogInfo(false))
	if err != nil {
		return nil, "", err
	}
	for e := range events {
		if e.State == zk.StateHasSession {
			break
		}
	}
	z := &zookeeper{c, "/" + time.Now().Format("150405.000000")}
	return z, z.dir, z.directory(z.dir)
}

func (z *zookeeper) get(path string) error {
	_, _, err := z.c.Get(path)
	return err
}

// newest is a sync before the read, as ZooKeeper's manual has it.
func (z *zookeeper) newest(path string) (bool, error) {
	if _, err := z.c.Sync(path); err != nil {
		return true, err
	}
	return true, z.get(path)
}

func (z *zookeeper) put(path string, value []byte) error {
	_, err := z.c.Set(path, value, -1)
	if err == zk.ErrNoNode {
		err = z.create(path)
	}
	return err
}

func (z *zookeeper) create(path string) error {
	_, err := z.c.Create(path, value, 0, zk.WorldACL(zk.PermAll))
	return err
}

func (z *zookeeper) ephemeral(path string) error {
	_, err := z.c.Create(path, value, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
	return err
}

func (z *zookeeper) directory(path string) error { return z.create(path) }

func (z *zookeeper) list(path string) (int, error) {
	names, _, err := z.c.Children(path)
	return len(names), err
}

func (z *zookeeper) rename(string, string) (bool, error) { return false, nil }

func (z *zookeeper) watch(path string, ready func()) error {
	_, _, events, err := z.c.GetW(path)
	if err != nil {
		return err
	}
	ready()
	return (<-events).Err
}

func (z *zookeeper) bare() (bool, error) { return false, nil }

func (z *zookeeper) clean() {
	z.remove(z.dir)
	z.c.Close()
}

func (z *zookeeper) remove(path string) {
	names, _, _ := z.c.Children(path)
	for _, n := range names {
		z.remove(path + "/" + n)
	}
	z.c.Delete(path, -1)
}
