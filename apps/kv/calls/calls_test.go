package calls

import (
	"bytes"
	"testing"

	"sigmaos.dev/apps/kv/store"
	"sigmaos.dev/wire/sigmap"
)

// FuzzCode: bytes that are read as a message are written as the same bytes.
func FuzzCode(f *testing.F) {
	for _, code := range []func(*sigmap.Coder){
		(&ExportArg{Shard: 1, After: "k"}).Code,
		(&WatchArg{Prefix: "p", Places: []store.At{{Shard: 1, Version: Now}}}).Code,
		(&JoinArg{ID: 1, Name: "n"}).Code,
	} {
		c := sigmap.NewEncoder(nil)
		code(c)
		f.Add(c.Bytes())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var export ExportArg
		var watch WatchArg
		var join JoinArg
		for _, code := range []func(*sigmap.Coder){export.Code, watch.Code, join.Code} {
			if sigmap.Parse(b, code) != nil {
				continue
			}
			c := sigmap.NewEncoder(nil)
			if code(c); !bytes.Equal(c.Bytes(), b) {
				t.Errorf("%x became %x", b, c.Bytes())
			}
		}
		if news, err := store.ParseNews(b); err == nil && !bytes.Equal(store.EncodeNews(news), b) {
			t.Error("news became other bytes")
		}
	})
}
