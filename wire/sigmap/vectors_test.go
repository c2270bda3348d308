package sigmap

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/vectors.txt anew")

const vectorsHead = `# Test vectors of sigmaP (docs/reference/protocol.md). Every client and server of it must produce and understand them.
#
# A line is: name, bytes in hex, fields in JSON; separated by tabs. A name is that of a message, or "payload." and that of a payload of calls, with a suffix
# where there are several. Messages have tag 0x0102. In the fields, bytes are in base64, times in RFC 3339 (0001-01-01T00:00:00Z = none), durations in
# nanoseconds, kinds and other enumerations are numbers. The request in a Twith is a Tunlinkat, the reply in an Rwith an
# Rreadlink, or what the suffix says; a stale Twith has a Tdescribe, its Rwith an Rfail.
#
# Written by: go test ./wire/sigmap -run TestVectors -rewrite
`

const vectorTag = 0x0102

// vectors are the messages, each type at least once, with the ends of ranges.
func vectors() map[string]Message {
	id := sigma.FileID{Kind: sigma.KindDir, Path: 0x1122334455667788, Version: 0xaabbccdd}
	wide := sigma.FileID{Kind: sigma.KindCallable, Path: 1, Version: 0x0102030405060708}
	out := map[string]Message{}
	add := func(suffix string, ms ...Message) {
		for _, m := range ms {
			out[m.Type().String()+suffix] = m
		}
	}
	add("", &Rlerror{Errno: 2}, &Rfail{Kind: sigma.KindNotFound, Path: "/a", Msg: "no such name",
		Hint: "look elsewhere"}, &Rstop{Walked: 1, Kind: sigma.KindSymlink, Target: "/b"},
		&Rreset{Nonce: 0x1122334455667788},
		&Tversion{Msize: MessageMax, Version: VersionSigma}, &Rversion{Msize: MessageMax, Version: VersionSigma},
		&Tattach{Fid: 1, Afid: NoFid, Uname: "", Aname: "realm", NUname: NoFid}, &Rattach{ID: id}, &Tflush{OldTag: 9},
		&Rflush{},
		&Twalk{Fid: 1, NewFid: 2, Names: []string{"a", "bc"}},
		&Rwalk{IDs: []sigma.FileID{id, {Kind: sigma.KindEndpoint, Path: 2}}},
		&Tlopen{Fid: 1, Flags: 0x8002}, &Rlopen{ID: id, IOUnit: DataMax}, &Tlcreate{Fid: 1, Name: "n", Flags: 0x241,
			Mode: 0o644, GID: NoFid}, &Rlcreate{ID: id, IOUnit: DataMax},
		&Tsymlink{Fid: 1, Name: "n", Target: "../t", GID: 0}, &Rsymlink{ID: id}, &Treadlink{Fid: 1},
		&Rreadlink{Target: "t"},
		&Tgetattr{Fid: 1, Mask: GetattrBasic | GetattrVersion},
		&Rgetattr{Valid: GetattrBasic, ID: id, Mode: 0o40755, UID: 1, GID: 2, NLink: 3, RDev: 4, Size: 5, BlockSize: 6,
			Blocks: 7, ATime: 8, ATimeNsec: 9, MTime: 10, MTimeNsec: 11,
			CTime: 12, CTimeNsec: 13, BTime: 14, BTimeNsec: 15, Gen: 16, DataVersion: 17},
		&Tsetattr{Fid: 1, Valid: AttrSetMode | AttrSetSize, Mode: 0o600, UID: 1, GID: 2, Size: 3, ATime: 4,
			ATimeNsec: 5, MTime: 6, MTimeNsec: 7}, &Rsetattr{},
		&Treaddir{Fid: 1, Offset: 1<<64 - 1, Count: 1 << 31}, &Rreaddir{Data: []byte{1, 2, 3}},
		&Tfsync{Fid: 1, DataSync: 1}, &Rfsync{},
		&Tmkdir{Fid: 1, Name: "d", Mode: 0o755, GID: 0}, &Rmkdir{ID: id}, &Trenameat{OldDir: 1, OldName: "a", NewDir: 2,
			NewName: "b"}, &Rrenameat{},
		&Tunlinkat{Dir: 1, Name: "a", Flags: 0x200}, &Runlinkat{}, &Tread{Fid: 1, Offset: 2, Count: 3},
		&Rread{Data: []byte("data")}, &Twrite{Fid: 1, Offset: 2, Data: []byte("data")},
		&Rwrite{Count: 4}, &Tclunk{Fid: 1}, &Rclunk{}, &Tremove{Fid: 1}, &Rremove{}, &Tstatfs{Fid: 1},
		&Rstatfs{FSType: 1, BlockSize: 2, Blocks: 3, BlocksFree: 4, BlocksAvail: 5, Files: 6, FilesFree: 7, FSID: 8,
			NameLen: 9},
		&Tget{Fid: 1, Names: []string{"a", "b"}, Offset: 2, Count: 3}, &Rget{ID: wide, Size: 9, Data: []byte("data")},
		&Tput{Fid: 1, Names: []string{"a"}, Options: sigma.PutOptions{Kind: sigma.KindFile, Perm: 0o644, MustMake: true,
			IfVersion: 5, Lease: 6, Wait: true}, Data: []byte("data")},
		&Treadif{Fid: 1, Offset: 2, Count: 3, Version: 4}, &Rreadif{Data: []byte("data")},
		&Twriteif{Fid: 1, Offset: 2, Version: 4, Data: []byte("data")}, &Rwriteif{Count: 4, Version: 5},
		&Rput{ID: wide}, &Twatch{Fid: 1, Since: 1<<64 - 1}, &Rwatch{Version: 8},
		&Tlease{Fid: 1, ID: 2, TTL: 3 * time.Second}, &Rlease{ID: 4},
		&Tcall{Fid: 1, Method: "spawn", Payload: []byte("payload")}, &Rcall{Payload: []byte("reply")}, &Tpass{Fid: 1},
		&Rpass{}, &Tbulk{Fid: 1}, &Rbulk{Ticket: []byte("ticket")}, &Tlist{Fid: 1, Cookie: 2, Max: 3},
		&Rlist{Next: 9, More: true, Entries: []sigma.DirEntry{{Name: "a", ID: wide, Size: 1, Next: 5},
			{Name: "b", ID: sigma.FileID{Kind: sigma.KindFile, Path: 3, Version: 4}, Next: 9}}},
		&Twith{Once: sigma.Once{Client: 0x1122334455667788, Seq: 3, Done: 2, Again: true},
			Fence: sigma.Fence{Name: "/leader", Epoch: 9}, Request: &Tunlinkat{Dir: 1, Name: "a"}},
		&Rwith{Age: 2 * time.Second, Reply: &Rreadlink{Target: "t"}},
		&Tfind{Fid: 1, NewFid: 2, Path: 3}, &Rfind{},
		&Tdescribe{Fid: 1}, &Rdescribe{Stat: sigma.Stat{ID: wide, Name: "n", Perm: 0o640, Size: 7,
			Modified: time.Unix(1700000000, 123456789).UTC(), Owner: "o", Ephemeral: true, Hole: 4}})
	add(".Tput", &Twith{Once: sigma.Once{Client: 1, Seq: 1}, Request: &Tput{Fid: 1, Names: []string{"a"},
		Data: []byte("data")}})
	add(".Tget", &Twith{Sync: true, Request: &Tget{Fid: 1, Names: []string{"a"}, Count: 2}})
	add(".stale", &Twith{Stale: true, Request: &Tdescribe{Fid: 1}},
		&Rwith{Age: time.Hour, Reply: &Rfail{Kind: sigma.KindNotFound, Path: "a"}})
	add(".Tread", &Twith{Fence: sigma.Fence{Name: "f", Epoch: 1}, Request: &Tread{Fid: 1, Count: 2}})
	add(".several", &Tversion{Msize: MessageMax, Version: VersionSeveral},
		&Rversion{Msize: MessageMax, Version: VersionSeveral})
	add(".clone", &Twalk{Fid: 1, NewFid: 2, Names: []string{}}, &Rwalk{IDs: []sigma.FileID{}})
	add(".none", &Rfail{Kind: sigma.KindOther}, &Rread{Data: []byte{}}, &Rdescribe{}, &Rlist{})
	add(".endpoint", &Tput{Fid: 1, Names: []string{"e"}, Options: sigma.PutOptions{Kind: sigma.KindEndpoint,
		MustExist: true}, Data: []byte("text")},
		&Rstop{Walked: 2, Kind: sigma.KindEndpoint, Target: "sigma-endpoint/1 r m p AAAAAAAAAAAAAAAAAAAAAA tree"})
	add(".append", &Tput{Fid: 1, Names: []string{"f"}, Options: sigma.PutOptions{Append: true}, Data: []byte("more")})
	entries, _ := AppendDirEntry(nil, 1000, DirEntry{ID: id, Next: 1, Name: "dir"})
	entries, _ = AppendDirEntry(entries, 1000, DirEntry{ID: sigma.FileID{Kind: sigma.KindSymlink, Path: 5}, Next: 2,
		Name: "link"})
	add(".entries", &Rreaddir{Data: entries})
	return out
}

// fillPayloads gives payloads fixed values.
func fillPayloads(ps map[string]payload) {
	proc := sigma.ProcID("abcdefghijklmnop")
	d := sigma.Descriptor{Program: "/bin/hello", Name: "hello", Args: []string{"a", ""}, Env: []string{"K=v"},
		Class: sigma.LatencyCritical, CPU: 500, Where: []string{"zone=a"}, Spread: "rack", Memory: 64 * sigma.MiB,
		Start: sigma.StartedByCall, TraceParent: "00-1-2-00", Profile: sigma.ProfileLinux,
		View: []sigma.ViewEntry{{Path: "/in", Target: "/s3/in", Rights: sigma.RightsRead}}}
	st := sigma.Status{Code: sigma.StatusError, ExitCode: -1, Kind: sigma.KindNoExec, Msg: "not executable",
		Data: []byte("data")}
	info := sigma.ProcInfo{ID: proc, Realm: "tenant", Name: "hello", Program: "/bin/hello", Args: []string{"a"},
		Parent: "parent", Machine: "m1", Memory: 1 << 20, Profile: sigma.ProfileLinux, State: sigma.ProcEnded,
		Frozen: true, Timing: sigma.Timing{1, 2, 3, 4, 5, 6, 7},
		Status: st, Times: sigma.Times{Spawned: time.Unix(1, 2).UTC(), Ended: time.Unix(3, 4).UTC()},
		Usage: sigma.Usage{UserTime: time.Second, SystemTime: 2, Memory: 4, MemoryPeak: 3, Tasks: 5, Output: 6}}
	who := sigma.Principal{Realm: "tenant", Proc: proc, Machine: "m1", System: true}
	*ps["ProcID"].value.(*sigma.ProcID) = proc
	*ps["ProcIDs"].value.(*[]sigma.ProcID) = []sigma.ProcID{proc, "b"}
	*ps["RealmID"].value.(*sigma.RealmID) = "tenant"
	*ps["Descriptor"].value.(*sigma.Descriptor) = d
	*ps["Descriptors"].value.(*[]sigma.Descriptor) = []sigma.Descriptor{d, {Program: "/bin/x"},
		{Program: "/bin/y", View: []sigma.ViewEntry{}}, {Program: "/bin/z", Near: "m2"}}
	*ps["Status"].value.(*sigma.Status) = st
	*ps["ProcInfo"].value.(*sigma.ProcInfo) = info
	*ps["ProcInfos"].value.(*[]sigma.ProcInfo) = []sigma.ProcInfo{info}
	*ps["Usages"].value.(*[]sigma.Usage) = []sigma.Usage{info.Usage, {}}
	*ps["Principal"].value.(*sigma.Principal) = who
	*ps["Info"].value.(*Info) = Info{Principal: who, Version: "v1"}
	*ps["Endpoint"].value.(*sigma.Endpoint) = sigma.Endpoint{Realm: "tenant", Machine: "m1", Proc: proc,
		ID: "AAECAwQFBgcICQoLDA0ODw", Form: sigma.FormStream}
	*ps["RealmInfos"].value.(*[]sigma.RealmInfo) = []sigma.RealmInfo{{ID: "tenant", Created: time.Unix(1, 0).UTC(),
		Procs: 2, Shares: 4, Limits: sigma.RealmLimits{Names: 1, Bytes: 2, Watches: 3, Leases: 4, Sessions: 5,
			Handles: 6, Scratch: 7, MaxCPU: 8, MaxMemory: 9, MinCPU: 10, MinMemory: 11, ReserveCPU: 12,
			ReserveMemory: 13}}}
	*ps["Caps"].value.(*Caps) = Caps{ID: proc, Realm: "tenant", Machine: "m1", Profile: sigma.ProfileSigma,
		View: d.View, Kin: []sigma.ProcID{proc}, Entered: 1, Leases: []sigma.LeaseID{7}, Memory: 64 * sigma.MiB,
		Tasks: 512, Files: 4096}
	*ps["Arrival"].value.(*Arrival) = Arrival{Pool: 9, From: who, First: 5, Line: true, Tickets: []string{"t", ""}}
	*ps["PoolAsk"].value.(*PoolAsk) = PoolAsk{Endpoint: *ps["Endpoint"].value.(*sigma.Endpoint), Unused: []uint64{5, 6},
		Count: 8, Over: true}
	*ps["PoolGrant"].value.(*PoolGrant) = PoolGrant{Line: true, First: 5, Tickets: []string{"t"}}
	*ps["Services"].value.(*[]Service) = []Service{{Name: "named", Proc: proc, State: "running",
		Since: time.Unix(1, 0).UTC(), Restarts: 1}}
}

type vector struct {
	name, fields string
	bytes        []byte
}

func (v vector) message() bool { return !strings.HasPrefix(v.name, "payload.") }

// makeVectors encodes what vectors and fillPayloads say.
func makeVectors(t *testing.T) (out []vector) {
	line := func(name string, buf []byte, err error, value any) {
		fields, jsonErr := json.Marshal(value)
		if err != nil || jsonErr != nil {
			t.Fatalf("%s: %v %v", name, err, jsonErr)
		}
		out = append(out, vector{name, string(fields), buf})
	}
	for name, m := range vectors() {
		buf, err := Encode(nil, vectorTag, m)
		line(name, buf, err, m)
	}
	ps := payloads()
	fillPayloads(ps)
	for name, p := range ps {
		buf, err := Payload(p.code)
		line("payload."+name, buf, err, p.value)
	}
	slices.SortFunc(out, func(a, b vector) int { return strings.Compare(a.name, b.name) })
	return out
}

var vectorsFile = filepath.Join("testdata", "vectors.txt")

func readVectors(t testing.TB) (out []vector) {
	text, err := os.ReadFile(vectorsFile)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		if w := strings.Split(lines.Text(), "\t"); len(w) == 3 {
			buf, err := hex.DecodeString(w[1])
			if err != nil {
				t.Fatalf("%s: %v", w[0], err)
			}
			out = append(out, vector{w[0], w[2], buf})
		}
	}
	return out
}

// TestVectors: the codec writes and reads the vectors of the file, and there is one of each type.
func TestVectors(t *testing.T) {
	created := makeVectors(t)
	if *rewrite {
		var b strings.Builder
		b.WriteString(vectorsHead)
		for _, v := range created {
			fmt.Fprintf(&b, "%s\t%x\t%s\n", v.name, v.bytes, v.fields)
		}
		if err := os.WriteFile(vectorsFile, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	kept := readVectors(t)
	if len(kept) != len(created) {
		t.Errorf("the file has %d vectors, the test %d; a change of the protocol needs a new version of it", len(kept),
			len(created))
	}
	seen := map[Type]bool{}
	for i, v := range kept {
		if i < len(created) && (v.name != created[i].name || v.fields != created[i].fields ||
			!bytes.Equal(v.bytes, created[i].bytes)) {
			t.Errorf("got  %s %x\nwant %s %x", created[i].name, created[i].bytes, v.name, v.bytes)
		}
		if !v.message() {
			name, _, _ := strings.Cut(strings.TrimPrefix(v.name, "payload."), ".")
			p := payloads()[name]
			if err := Parse(v.bytes, p.code); err != nil {
				t.Errorf("%s: %v", v.name, err)
			}
			continue
		}
		tag, m, err := Decode(v.bytes)
		if err != nil || tag != vectorTag {
			t.Errorf("%s: tag %d, %v", v.name, tag, err)
			continue
		}
		seen[m.Type()] = true
		again, err := Encode(nil, tag, m)
		if err != nil || !bytes.Equal(again, v.bytes) {
			t.Errorf("%s decodes to %+v, which encodes to %x, %v", v.name, m, again, err)
		}
	}
	for i := range 256 {
		if New(Type(i)) != nil && !seen[Type(i)] {
			t.Errorf("there is no vector of %s", Type(i))
		}
	}
}
