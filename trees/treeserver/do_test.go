package treeserver_test

import (
	"context"
	"reflect"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
)

// recorder notes the request that came last and answers with all fields set.
type recorder struct {
	got   sigma.Request
	reply sigma.Reply
}

func (r *recorder) Handle(_ context.Context, q sigma.Request) (sigma.Reply, error) {
	r.got = q
	return r.reply, nil
}

// methods has all methods of a file and its companions, and no Handle.
type methods struct{ all }

type all interface {
	sigma.File
	sigma.Getter
	sigma.Putter
	sigma.Conditional
	sigma.Watcher
	sigma.Leaser
	sigma.Finder
	sigma.Identified
	sigma.Caller
	sigma.Recaller
	sigma.FilePasser
	sigma.BulkPasser
	sigma.Publisher
	sigma.Spacious
	sigma.Rememberer
}

// Goal: what sigma.Stub makes requests of, Do makes the same methods of, for every Op and field.
//
// Method: a request goes by Do to methods, which are those of a Stub, and so becomes a request
// again. That must have the same Op. It has only the fields that the Op uses, all of them set; so a
// second time it comes through as it is.
func TestDo(t *testing.T) {
	full := sigma.Request{Flags: 2, Perm: 0o644, Name: "n", Text: "t", Names: []string{"a"}, Data: []byte("d"),
		Offset: 7, Count: 8, Version: 9, Put: sigma.PutOptions{Perm: 1}, Change: sigma.StatChange{Perm: new(uint32)},
		Dir: treeserver.Base{}, Lease: 10, TTL: time.Second}
	rec := &recorder{reply: sigma.Reply{File: treeserver.Base{}, IDs: []sigma.FileID{{Path: 1}},
		ID: sigma.FileID{Path: 2}, Stat: sigma.Stat{Name: "s"}, Stop: &sigma.Stopped{Walked: 1}, Data: []byte("r"),
		Size: 3, Text: "x", Entries: []sigma.DirEntry{{Name: "e"}}, Next: 4, N: 5, More: true, Yes: true, Version: 6,
		Lease: 11, Space: sigma.Space{Total: 12}}}
	file := methods{sigma.Stub{Handler: rec}}
	for op := sigma.OpClose; op <= sigma.OpFind; op++ {
		switch op {
		case sigma.OpPassFile, sigma.OpPassBulk: // their replies are descriptors
			continue
		}
		if op.String() == "" || op == sigma.OpStreams { // the latter is no method
			continue
		}
		full.Op, rec.got = op, sigma.Request{}
		reply, err := treeserver.Do(t.Context(), file, full)
		if err != nil || rec.got.Op != op {
			t.Errorf("%v became %v, %v", op, rec.got.Op, err)
			continue
		}
		sent := rec.got
		again, err := treeserver.Do(t.Context(), file, sent)
		if err != nil || !reflect.DeepEqual(rec.got, sent) || !reflect.DeepEqual(again, reply) {
			t.Errorf("%v: %+v became %+v, %v", op, sent, rec.got, err)
		}
		direct, _ := treeserver.Do(t.Context(), sigma.Stub{Handler: rec}, full)
		if !reflect.DeepEqual(direct, rec.reply) || !reflect.DeepEqual(rec.got, full) {
			t.Errorf("%v does not reach a Handler as it is", op)
		}
	}
}
