package named

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"time"

	"sigmaos.dev/sigma"
)

// The store holds these keys:
//
//	m                            how many realms were ever made (counter)
//	r/<realm>                    realmRecord
//	t/<realm>/<parent>/<name>    node; parent is a file id in 16 hexadecimal digits; the root is the empty name under parent 0
//	l/<realm>/<lease>            leaseRecord; lease in 16 hexadecimal digits
//	f/<realm>/<fence>            the newest epoch of the fence
//	o/<realm>/<client>           client (once.go); client in 16 hexadecimal digits
//	c/<realm>/                   the realm's credentials (credentials.go)
//	n/term, n/beat               who leads (term.go)
//	x/<machine>                  the machine is expelled
//
// Since a file's key names its parent by id, renaming a directory moves one key, however much is
// below it.
const (
	counterKey    = "m"
	realmPrefix   = "r/"
	recordVersion = 1
)

func realmKey(r sigma.RealmID) string { return realmPrefix + string(r) }

func treePrefix(r sigma.RealmID) string { return "t/" + string(r) + "/" }

const leasesPrefix = "l/"

func leasePrefix(r sigma.RealmID) string { return leasesPrefix + string(r) + "/" }

func nodeKey(r sigma.RealmID, parent uint64, name string) string {
	return treePrefix(r) + hex16(parent) + "/" + name
}

func leaseKey(r sigma.RealmID, id sigma.LeaseID) string { return leasePrefix(r) + hex16(uint64(id)) }

func oncePrefix(r sigma.RealmID) string { return "o/" + string(r) + "/" }

func onceKey(r sigma.RealmID, client uint64) string { return oncePrefix(r) + hex16(client) }

func hex16(v uint64) string {
	s := strconv.FormatUint(v, 16)
	return "0000000000000000"[len(s):] + s
}

func parseHex16(s string) (uint64, bool) {
	v, err := strconv.ParseUint(s, 16, 64)
	return v, err == nil && len(s) == 16 && hex16(v) == s
}

// parseNodeKey takes what follows treePrefix apart.
func parseNodeKey(s string) (parent uint64, name string, ok bool) {
	p, name, found := strings.Cut(s, "/")
	parent, ok = parseHex16(p)
	if !found || !ok {
		return 0, "", false
	}
	if parent == 0 {
		return 0, "", name == ""
	}
	return parent, name, sigma.CheckName(name) == nil
}

// node is one file, directory or link. A node is never changed once a tree holds it: changes
// replace it by a copy, so that a reader who has one may use it without a lock. Its data slice is
// never written to either.
type node struct {
	id      uint64
	parent  uint64
	name    string
	pos     uint64 // place of the name in its directory's listing; stays when the name gets another file
	kind    sigma.FileKind
	perm    uint32
	mtime   int64 // Unix nanoseconds
	version sigma.Version
	lease   sigma.LeaseID
	data    []byte // content of a file, target of a link
	count   int    // entries of a directory; not stored
}

func (n *node) fileID() sigma.FileID {
	return sigma.FileID{Kind: n.kind, Path: n.id, Version: n.version}
}

func (n *node) isLink() bool { return n.kind == sigma.KindSymlink || n.kind == sigma.KindEndpoint }

func (n *node) stat() sigma.Stat {
	return sigma.Stat{ID: n.fileID(), Name: n.name, Perm: n.perm, Size: uint64(len(n.data)),
		Modified: time.Unix(0, n.mtime), Ephemeral: n.lease != 0}
}

// encode prints what decodeNode reads. Parent and name are in the key.
func (n *node) encode() []byte {
	b := make([]byte, 0, len(n.data)+64)
	b = append(b, recordVersion, byte(n.kind))
	b = binary.AppendUvarint(b, n.id)
	b = binary.AppendUvarint(b, uint64(n.perm))
	b = binary.AppendVarint(b, n.mtime)
	b = binary.AppendUvarint(b, uint64(n.version))
	b = binary.AppendUvarint(b, n.pos)
	b = binary.AppendUvarint(b, uint64(n.lease))
	b = binary.AppendUvarint(b, uint64(len(n.data)))
	return append(b, n.data...)
}

// decodeNode reads a node's record. The data of the node is a copy.
func decodeNode(b []byte) (*node, error) {
	d := decoder{b: b}
	d.version()
	n := &node{kind: sigma.FileKind(d.byte())}
	n.id = d.uvarint()
	n.perm = uint32(d.bounded(0o777))
	n.mtime = d.varint()
	n.version = sigma.Version(d.uvarint())
	n.pos = d.uvarint()
	n.lease = sigma.LeaseID(d.uvarint())
	n.data = d.bytes(FileMax)
	if d.err == nil && (n.kind > sigma.KindEndpoint || n.id == 0 || n.kind == sigma.KindDir &&
		(len(n.data) != 0 || n.lease != 0)) {
		d.fail("impossible values")
	}
	if err := d.end("file"); err != nil {
		return nil, err
	}
	return n, nil
}

// realmRecord is rewritten by every commit of its realm, so that its revision in the store fences
// older writers.
type realmRecord struct {
	number   uint64            // never reused; high bits of the realm's file ids
	created  int64             // Unix nanoseconds
	claims   uint64            // how often the realm was loaded
	nextID   uint64            // low bits of the next file or lease
	seq      uint64            // last change; versions are taken from it
	removing bool              // Remove began and must be finished
	shares   uint32            // 0 as long as nobody set them
	limits   sigma.RealmLimits // 0 = the default
}

func (r *realmRecord) encode() []byte {
	b := []byte{recordVersion, 0}
	if r.removing {
		b[1] |= flagRemoving
	}
	if r.shares > 0 {
		b[1] |= flagShares
	}
	if l := r.limits; l != (sigma.RealmLimits{}) {
		b[1] |= flagLimits
		if l.Sessions|l.Handles != 0 {
			b[1] |= flagMoreLimits
		}
		if l.Scratch != 0 {
			b[1] |= flagScratch
		}
		if l.Computes() {
			b[1] |= flagCompute
		}
	}
	for _, v := range []uint64{r.number, uint64(r.created), r.claims, r.nextID, r.seq} {
		b = binary.AppendUvarint(b, v)
	}
	if r.shares > 0 {
		b = binary.AppendUvarint(b, uint64(r.shares))
	}
	if l := r.limits; b[1]&flagLimits != 0 {
		for _, v := range []uint64{l.Names, uint64(l.Bytes), l.Watches, l.Leases} {
			b = binary.AppendUvarint(b, v)
		}
		if b[1]&flagMoreLimits != 0 {
			b = binary.AppendUvarint(binary.AppendUvarint(b, l.Sessions), l.Handles)
		}
		if b[1]&flagScratch != 0 {
			b = binary.AppendUvarint(b, uint64(l.Scratch))
		}
		if b[1]&flagCompute != 0 {
			for _, v := range []uint64{uint64(l.MaxCPU), uint64(l.MaxMemory), uint64(l.MinCPU), uint64(l.MinMemory),
				uint64(l.ReserveCPU), uint64(l.ReserveMemory)} {
				b = binary.AppendUvarint(b, v)
			}
		}
	}
	return b
}

// Flags of a realm's record.
const (
	flagRemoving = 1 << iota
	flagShares   // they follow
	flagLimits   // they follow
	flagMoreLimits
	flagScratch
	flagCompute // maxima, minima and what can be reserved
	flagsEnd
)

func decodeRealm(b []byte) (realmRecord, error) {
	d := decoder{b: b}
	d.version()
	flags := d.byte()
	r := realmRecord{number: d.bounded(realmNumberMax), created: int64(d.uvarint()), claims: d.uvarint(),
		nextID: d.bounded(fileNumberMax), seq: d.uvarint()}
	r.removing = flags&flagRemoving != 0
	if flags&flagShares != 0 {
		r.shares = uint32(d.bounded(sigma.SharesMax))
	}
	if flags&flagLimits != 0 {
		r.limits = sigma.RealmLimits{Names: d.bounded(sigma.LimitNamesMax),
			Bytes:   sigma.Bytes(d.bounded(uint64(sigma.LimitBytesMax))),
			Watches: d.bounded(sigma.LimitWatchesMax), Leases: d.bounded(sigma.LimitLeasesMax)}
		if flags&flagMoreLimits != 0 {
			r.limits.Sessions, r.limits.Handles = d.bounded(sigma.LimitSessionsMax), d.bounded(sigma.LimitHandlesMax)
		}
		if flags&flagScratch != 0 {
			r.limits.Scratch = sigma.Bytes(d.bounded(uint64(sigma.LimitScratchMax)))
		}
		if flags&flagCompute != 0 {
			cpu := func() sigma.MilliCPU { return sigma.MilliCPU(d.bounded(uint64(sigma.LimitCPUMax))) }
			memory := func() sigma.Bytes { return sigma.Bytes(d.bounded(uint64(sigma.LimitMemoryMax))) }
			l := &r.limits
			l.MaxCPU, l.MaxMemory = cpu(), memory()
			l.MinCPU, l.MinMemory = cpu(), memory()
			l.ReserveCPU, l.ReserveMemory = cpu(), memory()
		}
	}
	if flags >= flagsEnd || flags&flagMoreLimits != 0 && r.limits.Sessions|r.limits.Handles == 0 ||
		flags&flagScratch != 0 && r.limits.Scratch == 0 || flags&flagCompute != 0 && !r.limits.Computes() ||
		flags&flagLimits != 0 && r.limits == (sigma.RealmLimits{}) || flags&flagShares != 0 && r.shares == 0 ||
		r.number == 0 || r.nextID < 2 {
		d.fail("impossible values")
	}
	return r, d.end("realm")
}

// rootID is the id of the realm's root; it is the first that the realm gives.
func (r *realmRecord) rootID() uint64 { return r.number<<fileNumberBits | 1 }

// File ids are unique over all realms of a server: a realm's number, then a number within the
// realm.
const (
	fileNumberBits = 40
	fileNumberMax  = 1<<fileNumberBits - 1
	realmNumberMax = 1<<(64-fileNumberBits) - 1
)

type leaseRecord struct {
	ttl     time.Duration
	machine sigma.MachineID // may be ""
}

func (l leaseRecord) encode() []byte {
	b := binary.AppendUvarint([]byte{recordVersion}, uint64(l.ttl))
	if l.machine == "" { // as all were before there were several machines
		return b
	}
	return append(binary.AppendUvarint(b, uint64(len(l.machine))), l.machine...)
}

func decodeLease(b []byte) (leaseRecord, error) {
	d := decoder{b: b}
	d.version()
	l := leaseRecord{ttl: time.Duration(d.bounded(uint64(LeaseMax)))}
	if len(d.b) > 0 {
		l.machine = sigma.MachineID(d.bytes(machineMax))
		if d.err == nil && l.machine.Check() != nil {
			d.fail("impossible values")
		}
	}
	if l.ttl < LeaseLeast {
		d.fail("impossible values")
	}
	return l, d.end("lease")
}

// machineMax bounds a machine's name in a record.
const machineMax = 255

func encodeCounter(v uint64) []byte { return binary.AppendUvarint([]byte{recordVersion}, v) }

func decodeCounter(b []byte) (uint64, error) {
	d := decoder{b: b}
	d.version()
	v := d.bounded(realmNumberMax)
	return v, d.end("counter")
}

// decoder reads a record and remembers the first thing that was wrong with it.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail(what string) {
	if d.err == nil {
		d.err = fmt.Errorf("record has %s", what)
	}
	d.b = nil
}

func (d *decoder) version() {
	if v := d.byte(); d.err == nil && v != recordVersion {
		d.fail("version " + strconv.Itoa(int(v)) + ", which this program does not know")
	}
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.fail("too few bytes")
		return 0
	}
	v := d.b[0]
	d.b = d.b[1:]
	return v
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail("a bad number")
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail("a bad number")
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) bounded(most uint64) uint64 {
	v := d.uvarint()
	if v > most {
		d.fail("a number over its limit")
		return 0
	}
	return v
}

func (d *decoder) bytes(most int) []byte {
	n := d.bounded(uint64(most))
	if n > uint64(len(d.b)) {
		d.fail("too few bytes")
		return nil
	}
	v := d.b[:n:n]
	d.b = d.b[n:]
	if n == 0 {
		return nil
	}
	return append([]byte(nil), v...)
}

func (d *decoder) end(what string) error {
	if d.err == nil && len(d.b) != 0 {
		d.fail("bytes after its end")
	}
	if d.err != nil {
		return &sigma.Error{Op: "named.decode", Kind: sigma.KindOther, Msg: "damaged " + what + " record", Err: d.err}
	}
	return nil
}
