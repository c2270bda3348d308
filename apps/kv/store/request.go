package store

import (
	"encoding/binary"
	"fmt"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Bounds of what a store keeps and one request has.
const (
	KeyMax   = 1024
	ValueMax = 1 << 20
	// ShardsMax bounds the shards of a store.
	ShardsMax = 4096
	// PageMax bounds the bytes of one answer, unless a single value is larger.
	PageMax = 256 << 10
	// BatchMax bounds the keys of one GetMany and the items of one page.
	BatchMax = 4096
)

// Op says what a request is for. The numbers are in logs and do not change.
type Op uint8

// The operations. Those of a move are below; for them Client is the move's epoch and Seq its
// attempt.
const (
	Get Op = 1 + iota
	GetMany
	Range
	Put
	Delete
	Expire // removes keys whose time has passed
	Found  // the group begins: Value lists the shards that it has

	Mark           // the shard's changes are kept for a move to the group If
	Freeze         // the shard is not served any more
	Drop           // the keys of a frozen shard are forgotten
	Prepare        // the shard will come; If is the version that it has at Mark
	Import         // Value has items of the shard
	ImportChanges  // Value has changes of the shard
	ImportSessions // Value has sessions of the shard
	Activate       // the shard is served, and its version is If
	opEnd
)

// Reads reports whether an operation changes nothing.
func (o Op) Reads() bool { return o <= Range }

// Cond says when a Put or Delete takes effect.
type Cond uint8

// The conditions.
const (
	Always Cond = iota
	IfVersion
	condEnd
)

// Request is a request of a clerk or mover and, stamped, the command that a group applies.
type Request struct {
	Op     Op
	Now    uint64 // the leader's clock in milliseconds, set by Stamp
	Shard  uint16
	Cond   Cond
	Client uint64 // of the session; 0 = none
	Seq    uint64 // grows with each request of a session
	If     uint64 // version that the key must have for IfVersion, 0 = it must be missing; of Range: most items
	TTL    uint64 // milliseconds after which the key is gone; 0 = never; of Range: other than 0 = no values
	Key    []byte // of Range: the first
	Value  []byte // of Range: the end, which is not part of it; empty = none
}

// header is the length of a request without key and value.
const header = 1 + 8 + 2 + 1 + 4*8 + 4 + 4

// Code reads or writes r.
func (r *Request) Code(c *sigmap.Coder) {
	c.U8((*uint8)(&r.Op))
	c.U64(&r.Now)
	c.U16(&r.Shard)
	c.U8((*uint8)(&r.Cond))
	c.U64(&r.Client)
	c.U64(&r.Seq)
	c.U64(&r.If)
	c.U64(&r.TTL)
	c.Data(&r.Key)
	c.Data(&r.Value)
	if r.Op == 0 || r.Op >= opEnd || r.Cond >= condEnd || r.Shard >= ShardsMax {
		c.Fail("this is no request of a kv store")
	}
}

// Append appends the request to b.
func (r *Request) Append(b []byte) ([]byte, error) {
	c := sigmap.NewEncoder(b)
	r.Code(c)
	return c.Bytes(), c.Finish()
}

// Parse reads a request, whose key and value alias b, and checks its bounds.
func (r *Request) Parse(b []byte) error {
	c := sigmap.NewDecoder(b)
	r.Code(c)
	if err := c.Finish(); err != nil {
		return err
	}
	if r.Op < Found {
		return r.check()
	}
	return nil
}

func (r *Request) check() error {
	switch {
	case len(r.Key) > KeyMax || len(r.Value) > ValueMax:
		return TooBig(len(r.Key), len(r.Value))
	case len(r.Key) == 0 && (r.Op == Get || r.Op == Put || r.Op == Delete):
		return &sigma.Error{Op: "store.Request", Kind: sigma.KindInvalid, Msg: "the key is empty",
			Hint: "a key has at least one byte"}
	}
	return nil
}

// TooBig is the error for a key or value beyond the bounds.
func TooBig(key, value int) error {
	return &sigma.Error{Op: "store.Request", Kind: sigma.KindTooBig,
		Msg:  fmt.Sprintf("a key of %s or a value of %s is too long", sigma.Bytes(key), sigma.Bytes(value)),
		Hint: "a key has up to 1 KiB, a value up to 1 MiB: put larger data into a file, and its path here"}
}

// Stamp sets the clock of an encoded request.
func Stamp(b []byte, now time.Time) {
	if len(b) >= header {
		binary.LittleEndian.PutUint64(b[1:], uint64(now.UnixMilli()))
	}
}

// Code says what became of a request.
type Code uint8

// The codes of results.
const (
	Done     Code = iota
	Missing       // there is no such key
	Mismatch      // the key has another version, which is the result's
	NotHere       // the group does not serve the shard; Version is the group that does, 0 = not known
	Old           // a later request of the session has been applied
	Refused       // a step of a move that another move or attempt has overtaken
	Already       // Prepare: the shard is served here since this move; Mark: it has gone by this move
	Trimmed       // changes that old are not kept any more
	Bad           // the command cannot be read
	codeEnd
)

// Result is the answer to a request.
type Result struct {
	Code    Code
	Version uint64
	Value   []byte
}

// Append appends the result to b.
func (r *Result) Append(b []byte) []byte {
	b = append(b, byte(r.Code))
	b = binary.LittleEndian.AppendUint64(b, r.Version)
	return append(b, r.Value...)
}

// Parse reads a result, whose value aliases b.
func (r *Result) Parse(b []byte) error {
	c := sigmap.NewDecoder(b)
	c.U8((*uint8)(&r.Code))
	c.U64(&r.Version)
	sigmap.Rest(c, &r.Value)
	if r.Code >= codeEnd {
		c.Fail("this is no result of a kv store")
	}
	return c.Finish()
}

// Item is a key with what it has.
type Item struct {
	Key     string
	Value   string
	Version uint64 // of the shard when the key was written
	Expires uint64 // milliseconds since 1970; 0 = never
}

func (i *Item) code(c *sigmap.Coder) {
	codeText(c, &i.Key)
	codeText(c, &i.Value)
	c.U64(&i.Version)
	c.U64(&i.Expires)
}

// itemLeast is the size of an encoded item without key and value.
const itemLeast = 4 + 4 + 8 + 8

// codeText codes a string that may be longer than Coder.Str allows.
func codeText(c *sigmap.Coder, s *string) {
	var b []byte
	if !c.Decoding() {
		b = []byte(*s)
	}
	if c.Data(&b); c.Decoding() {
		*s = string(b)
	}
}

// Change is one change of a shard. The item of a key that is gone has no value.
type Change struct {
	Item
	Gone bool
}

func (h *Change) code(c *sigmap.Coder) {
	h.Item.code(c)
	c.Bool(&h.Gone)
}

// Session is the latest write of a client.
type Session struct {
	Client, Seq uint64
	Code        Code
	Version     uint64
}

func (s *Session) code(c *sigmap.Coder) {
	c.U64(&s.Client)
	c.U64(&s.Seq)
	c.U8((*uint8)(&s.Code))
	c.U64(&s.Version)
}

// encodeList encodes a list of anything.
func encodeList[T any](all []T, code func(*T, *sigmap.Coder)) []byte {
	c := sigmap.NewEncoder(nil)
	sigmap.List(c, &all, 1, func(v *T) { code(v, c) })
	return c.Bytes()
}

func parseList[T any](b []byte, least int, code func(*T, *sigmap.Coder)) (all []T, err error) {
	c := sigmap.NewDecoder(b)
	sigmap.List(c, &all, least, func(v *T) { code(v, c) })
	return all, c.Finish()
}

// EncodeItems and the like encode what is in values of requests and results; ParseItems and the
// like read it.
func EncodeItems(all []Item) []byte             { return encodeList(all, (*Item).code) }
func ParseItems(b []byte) ([]Item, error)       { return parseList(b, itemLeast, (*Item).code) }
func EncodeChanges(all []Change) []byte         { return encodeList(all, (*Change).code) }
func ParseChanges(b []byte) ([]Change, error)   { return parseList(b, itemLeast+1, (*Change).code) }
func EncodeSessions(all []Session) []byte       { return encodeList(all, (*Session).code) }
func ParseSessions(b []byte) ([]Session, error) { return parseList(b, 25, (*Session).code) }
func EncodeKeys(all []string) []byte            { return encodeList(all, codeKey) }
func ParseKeys(b []byte) ([]string, error)      { return parseList(b, 4, codeKey) }
func EncodeShards(all []uint16) []byte          { return encodeList(all, codeShard) }
func ParseShards(b []byte) ([]uint16, error)    { return parseList(b, 2, codeShard) }
func codeKey(s *string, c *sigmap.Coder)        { codeText(c, s) }
func codeShard(s *uint16, c *sigmap.Coder)      { c.U16(s) }
