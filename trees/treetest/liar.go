package treetest

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// A server of a tree may be any tenant's program, so whoever walks into one must bear anything that
// it says. Lie is such a server.

// lie answers a request by any number of records, whole or not. ok is false when the server ends
// the connection.
type lie func(tag uint16, m sigmap.Message) (records [][]byte, ok bool)

// lies are by name; each connection gets one of its own.
var lies = map[string]func() lie{
	"silence":    func() lie { return func(uint16, sigmap.Message) ([][]byte, bool) { return nil, true } },
	"hang-up":    func() lie { return func(uint16, sigmap.Message) ([][]byte, bool) { return nil, false } },
	"wrong-size": records(func(tag uint16) [][]byte { b := encode(tag, &sigmap.Rclunk{}); b[0]++; return [][]byte{b} }),
	"half": records(func(tag uint16) [][]byte {
		b := encode(tag, &sigmap.Rwalk{IDs: make([]sigma.FileID, 3)})
		return [][]byte{b[:len(b)/2]}
	}),
	"empty":      records(func(uint16) [][]byte { return [][]byte{{}} }),
	"wrong-type": answers(func(sigmap.Message) sigmap.Message { return &sigmap.Rclunk{} }),
	"unasked": records(func(tag uint16) [][]byte {
		return [][]byte{encode(tag+7, &sigmap.Rclunk{}), encode(tag, &sigmap.Rclunk{})}
	}),
	"twice":   records(func(tag uint16) [][]byte { b := encode(tag, &sigmap.Rfail{}); return [][]byte{b, b} }),
	"request": answers(func(m sigmap.Message) sigmap.Message { return &sigmap.Tclunk{} }),
	"reset":   records(func(uint16) [][]byte { return [][]byte{encode(sigmap.NoTag, &sigmap.Rreset{Nonce: 1})} }),
	"more-ids": honestBut(func(m sigmap.Message) sigmap.Message {
		return one[*sigmap.Twalk](m, &sigmap.Rwalk{IDs: make([]sigma.FileID, 300)})
	}),
	"endless-dir": endlessDir(false),
	"huge-names":  endlessDir(true),
	"same-cookie": honestBut(func(m sigmap.Message) sigmap.Message {
		return one[*sigmap.Tlist](m, &sigmap.Rlist{More: true})
	}),
	"bad-entries": honestBut(func(m sigmap.Message) sigmap.Message {
		return one[*sigmap.Tlist](m, &sigmap.Rlist{Entries: []sigma.DirEntry{{Name: "../../etc"}, {Name: ".."},
			{Name: "a/b"}, {}}})
	}),
	"same-entries": honestBut(sameEntries),
	"endless-file": honestBut(endlessFile),
	"long-data":    honestBut(longData),
	"written-more": honestBut(func(m sigmap.Message) sigmap.Message {
		return one[*sigmap.Twrite](m, &sigmap.Rwrite{Count: math.MaxUint32})
	}),
	"link-bomb": answers(linkBomb),
	"nonsense-link": answers(func(m sigmap.Message) sigmap.Message {
		return linkTo(m, sigma.KindEndpoint, "sigma-endpoint/9 nonsense")
	}),
	"unknown-kinds": answers(func(m sigmap.Message) sigmap.Message { return linkTo(m, 99, "x") }),
	"huge-failure": answers(func(sigmap.Message) sigmap.Message {
		return &sigmap.Rfail{Kind: 9999, Msg: strings.Repeat("no ", 20000)}
	}),
}

// Lies are what Lie knows, in order.
func Lies() []string { return slices.Sorted(maps.Keys(lies)) }

// Lie serves one connection in one of the ways of Lies, until that ends. It says what it must to be
// attached to, so that the lie comes when a file is asked for.
func Lie(how string, conn session.Conn) {
	defer conn.Close()
	answer := lies[how]()
	for {
		buf, files, err := conn.Recv()
		session.CloseFiles(files)
		if err != nil {
			return
		}
		tag, m, err := sigmap.Decode(buf)
		if err != nil {
			return
		}
		var out [][]byte
		ok := true
		switch m.(type) {
		case *sigmap.Tversion:
			out = [][]byte{encode(tag, &sigmap.Rversion{Msize: sigmap.MessageMax, Version: sigmap.VersionSigma})}
		case *sigmap.Tattach:
			out = [][]byte{encode(tag, &sigmap.Rattach{ID: dirID})}
		default:
			out, ok = answer(tag, m)
		}
		for _, b := range out {
			if conn.Send(b, nil) != nil {
				return
			}
		}
		if !ok {
			return
		}
	}
}

var (
	dirID  = sigma.FileID{Kind: sigma.KindDir, Path: 1, Version: 1}
	fileID = sigma.FileID{Kind: sigma.KindFile, Path: 2, Version: 1}
)

// encode never fails to, or the lie would be that there is no answer.
func encode(tag uint16, m sigmap.Message) []byte {
	b, err := sigmap.Encode(nil, tag, m)
	if err != nil {
		b, _ = sigmap.Encode(nil, tag, &sigmap.Rfail{})
	}
	return b
}

// records makes a lie of the records that it consists of.
func records(of func(tag uint16) [][]byte) func() lie {
	return func() lie { return func(tag uint16, _ sigmap.Message) ([][]byte, bool) { return of(tag), true } }
}

// answers makes a lie of whole messages.
func answers(of func(sigmap.Message) sigmap.Message) func() lie {
	return func() lie {
		return func(tag uint16, m sigmap.Message) ([][]byte, bool) { return [][]byte{encode(tag, of(m))}, true }
	}
}

// honestBut lies where of answers, and else says what a directory says whose entries are all
// directories.
func honestBut(of func(sigmap.Message) sigmap.Message) func() lie {
	return answers(func(m sigmap.Message) sigmap.Message {
		if r := of(m); r != nil {
			return r
		}
		return honest(m)
	})
}

func honest(m sigmap.Message) sigmap.Message {
	switch m := m.(type) {
	case *sigmap.Twalk:
		ids := make([]sigma.FileID, len(m.Names))
		for i := range ids {
			ids[i] = dirID
		}
		return &sigmap.Rwalk{IDs: ids}
	case *sigmap.Tlopen:
		return &sigmap.Rlopen{ID: dirID}
	case *sigmap.Tlcreate:
		return &sigmap.Rlcreate{ID: fileID}
	case *sigmap.Tdescribe:
		return &sigmap.Rdescribe{Stat: sigma.Stat{ID: fileID, Perm: 0o777, Size: math.MaxUint64}}
	case *sigmap.Tfsync:
		return &sigmap.Rfsync{}
	case *sigmap.Tclunk:
		return &sigmap.Rclunk{}
	}
	return &sigmap.Rfail{Kind: sigma.KindUnsupported}
}

// one answers only messages of type M.
func one[M sigmap.Message](m sigmap.Message, r sigmap.Message) sigmap.Message {
	if _, ok := m.(M); ok {
		return r
	}
	return nil
}

// endlessDir always has more entries.
func endlessDir(huge bool) func() lie {
	return honestBut(func(m sigmap.Message) sigmap.Message {
		l, ok := m.(*sigmap.Tlist)
		if !ok {
			return nil
		}
		r := &sigmap.Rlist{More: true, Next: l.Cookie}
		for room := sigmap.DataMax; len(r.Entries) < int(l.Max); {
			r.Next++
			name := fmt.Sprintf("%012d", r.Next)
			if huge {
				name += strings.Repeat("n", sigma.NameMax-len(name))
			}
			if room -= len(name) + sigmap.ListEntrySize; room < 0 {
				break
			}
			r.Entries = append(r.Entries, sigma.DirEntry{Name: name, ID: sigma.FileID{Kind: sigma.KindEndpoint},
				Next: r.Next})
		}
		return r
	})
}

// sameEntries has one entry again and again, at other cookies.
func sameEntries(m sigmap.Message) sigmap.Message {
	if l, ok := m.(*sigmap.Tlist); ok {
		return &sigmap.Rlist{More: true, Next: l.Cookie + 1,
			Entries: []sigma.DirEntry{{Name: "same", ID: dirID, Next: l.Cookie + 1}}}
	}
	return nil
}

// endlessFile has as many bytes as anybody asks for, and says that it has few.
func endlessFile(m sigmap.Message) sigmap.Message {
	switch m := m.(type) {
	case *sigmap.Tread:
		return &sigmap.Rread{Data: make([]byte, min(m.Count, sigmap.DataMax))}
	case *sigmap.Tget:
		return &sigmap.Rget{ID: fileID, Data: make([]byte, min(m.Count, sigmap.DataMax)), Size: math.MaxUint64}
	case *sigmap.Tdescribe:
		return &sigmap.Rdescribe{Stat: sigma.Stat{ID: fileID, Size: 1}}
	}
	return nil
}

// longData answers with more than was asked for.
func longData(m sigmap.Message) sigmap.Message {
	switch m.(type) {
	case *sigmap.Tread:
		return &sigmap.Rread{Data: make([]byte, sigmap.DataMax)}
	case *sigmap.Tget:
		return &sigmap.Rget{ID: fileID, Data: make([]byte, sigmap.DataMax), Size: 3}
	case *sigmap.Tlist:
		return &sigmap.Rlist{Entries: slices.Repeat([]sigma.DirEntry{{Name: "x", ID: dirID}}, 1000)}
	}
	return nil
}

// linkBomb says of every name that it is a link, to many more names.
func linkBomb(m sigmap.Message) sigmap.Message {
	return linkTo(m, sigma.KindSymlink, strings.Repeat("x/", sigma.PathMax/2-20)+"x")
}

func linkTo(m sigmap.Message, kind sigma.FileKind, target string) sigmap.Message {
	switch m := m.(type) {
	case *sigmap.Twalk:
		if len(m.Names) == 0 {
			return &sigmap.Rwalk{}
		}
		return &sigmap.Rwalk{IDs: []sigma.FileID{{Kind: kind}}}
	case *sigmap.Tget, *sigmap.Tput:
		return &sigmap.Rstop{Walked: 1, Kind: kind, Target: target}
	case *sigmap.Treadlink:
		return &sigmap.Rreadlink{Target: target}
	case *sigmap.Tclunk:
		return &sigmap.Rclunk{}
	}
	return &sigmap.Rfail{Kind: sigma.KindUnsupported}
}
