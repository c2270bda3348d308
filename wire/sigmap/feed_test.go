package sigmap

import (
	"bytes"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

// feedPayloads are what machines and named say to each other of what machines remember, all fields
// set.
func feedPayloads() []payload {
	node := NamesNode{Parent: 7, Stat: sigma.Stat{ID: sigma.FileID{Kind: sigma.KindSymlink, Path: 8, Version: 1 << 40},
		Name: "name", Perm: 0o640, Size: 3, Modified: time.Unix(0, 9).UTC(), Owner: "o", Ephemeral: true}}
	poll := NamesPoll{Number: 1, Since: 2, Wait: 3}
	feed := NamesFeed{Number: 1, At: 2, Reset: true, Changes: []NamesChange{{Kind: NodeChanged, At: 2, Node: node},
		{Kind: NodeGone, At: 2, Node: node}, {Kind: EntryChanged, At: 2, Node: node}}}
	look := NamesLook{From: 1, Names: []string{"a", "b"}, Max: 2}
	found := NamesFound{Number: 1, At: 2, Why: sigma.KindNotDir, Nodes: []NamesNode{node}, HasData: true,
		Data: []byte("data")}
	dir := NamesLookDir{Dir: 1, Cookie: 2, Max: 3}
	listing := NamesListing{Number: 1, At: 2, Dir: node, Next: 3, More: true,
		Entries: []sigma.DirEntry{{Name: "e", ID: node.Stat.ID, Size: 4, Next: 5}}}
	return []payload{{&poll, func(c *Coder) {
		c.NamesPoll(&poll)
	}}, {&feed, func(c *Coder) { c.NamesFeed(&feed) }}, {&look, func(c *Coder) { c.NamesLook(&look) }},
		{&found, func(c *Coder) {
			c.NamesFound(&found)
		}}, {&dir, func(c *Coder) { c.NamesLookDir(&dir) }}, {&listing, func(c *Coder) { c.NamesListing(&listing) }}}
}

// FuzzFeed: no bytes make Parse panic, and what it returns encodes and decodes to itself, for what
// machines ask named and its answers.
func FuzzFeed(f *testing.F) {
	for i, p := range feedPayloads() {
		b, err := Payload(p.code)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(append([]byte{byte(i)}, b...))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) == 0 || len(data) > DataMax {
			return
		}
		ps := feedPayloads()
		p := ps[int(data[0])%len(ps)]
		if Parse(data[1:], p.code) != nil {
			return
		}
		again, err := Payload(p.code)
		if err != nil || Parse(again, p.code) != nil {
			t.Fatalf("%x became %x, %v", data[1:], again, err)
		}
		if more, err := Payload(p.code); err != nil ||
			!bytes.Equal(again, more) { // ids say some things twice, so that the first bytes may be others
			t.Fatalf("%x became %x, %v", again, more, err)
		}
	})
}
