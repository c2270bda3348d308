// Package op is what can be done to one key of a cache: the operations that both text protocols and
// the clerk are made of, how they go over a call, and what they do to a store.
//
// It promises: an operation is applied in one step. Decode refuses what Encode does not make. It
// assumes that times are those of the member that applies the operation. Users: apps/cache and its
// text servers.
package op

import (
	"bytes"
	"context"
	"math"
	"strconv"

	"sigmaos.dev/apps/cache/store"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Kind says which operation it is.
type Kind uint8

// The operations.
const (
	Get     Kind = iota + 1
	Peek         // Get without the value, which does not count as a use
	Set          // Value, Flags, Expiry
	Append       // Value at the end of what is there
	Prepend      // or before it
	Delete       // the item
	Add          // Delta to a decimal number of 64 bits with sign
	Count        // Delta, or as Negative its opposite, to one without: it wraps, but not below 0
	Expire       // sets Expiry
	kindEnd
)

// Condition says when an operation is done; else its Status is Refused, or Missing.
type Condition uint8

// The conditions.
const (
	Always    Condition = iota
	IfAbsent            // there is no item
	IfPresent           // there is one
	IfVersion           // it has the version Version
	conditionEnd
)

// Op is an operation.
type Op struct {
	Kind       Kind
	Condition  Condition
	Key        []byte
	Value      []byte
	Flags      uint32
	Expiry     int64 // in ms since 1970; 0 = none
	Version    uint64
	Delta      int64 // of Count its bits are taken as without sign
	Negative   bool
	KeepExpiry bool // of Set: the old item's expiry stays
	Old        bool // of Set and Delete: the old value is wanted
}

// Status is how an operation ended.
type Status uint8

// The statuses.
const (
	OK        Status = iota
	Missing          // there is no item
	Refused          // the condition does not hold
	NotNumber        // the value is no decimal number of 64 bits
	Overflow         // the sum would be none
	statusEnd
)

// Result is what became of an operation. Of Get it has the item, of Set and Delete the old one, of
// the others what is there afterwards.
type Result struct {
	Status  Status
	Found   bool // there was an item before
	Value   []byte
	Length  int // of the value that is there afterwards, of Append and Peek
	Flags   uint32
	Expiry  int64
	Version uint64
	Number  int64
}

// Keys is where operations are applied. Safe for concurrent use.
type Keys interface {
	// Do applies an operation; the result's value is appended to buf. Errors are those of the
	// store, and of calls to other members.
	Do(ctx context.Context, o *Op, buf []byte) (Result, error)
}

const (
	bitNegative = 1 << iota
	bitKeepExpiry
	bitOld
	bitsEnd
)

// Encode appends an operation to a message.
func (o *Op) Encode(b []byte) []byte {
	c := sigmap.NewEncoder(b)
	o.code(c)
	return c.Bytes()
}

// Decode reads what Encode made. Key and Value alias the message.
func Decode(b []byte) (o Op, err error) {
	c := sigmap.NewDecoder(b)
	o.code(c)
	if err := c.Finish(); err != nil {
		return Op{}, err
	}
	if o.Kind == 0 || o.Kind >= kindEnd || o.Condition >= conditionEnd {
		return Op{}, sigma.Errorf("op.Decode", sigma.KindInvalid, "there is no operation %d, %d", o.Kind, o.Condition)
	}
	return o, nil
}

func (o *Op) code(c *sigmap.Coder) {
	c.U8((*uint8)(&o.Kind))
	c.U8((*uint8)(&o.Condition))
	bits := uint8(0)
	for i, b := range []*bool{&o.Negative, &o.KeepExpiry, &o.Old} {
		if *b {
			bits |= 1 << i
		}
	}
	c.U8(&bits)
	if bits >= bitsEnd {
		c.Fail("an operation has unknown bits")
	}
	o.Negative, o.KeepExpiry, o.Old = bits&bitNegative != 0, bits&bitKeepExpiry != 0, bits&bitOld != 0
	c.U32(&o.Flags)
	codeInt(c, &o.Expiry)
	c.U64(&o.Version)
	codeInt(c, &o.Delta)
	c.Data(&o.Key)
	sigmap.Rest(c, &o.Value)
}

func codeInt(c *sigmap.Coder, v *int64) {
	u := uint64(*v)
	c.U64(&u)
	*v = int64(u)
}

// Encode appends a result to a message.
func (r *Result) Encode(b []byte) []byte {
	c := sigmap.NewEncoder(b)
	r.code(c)
	return c.Bytes()
}

// DecodeResult reads what Result.Encode made. Value aliases the message.
func DecodeResult(b []byte) (r Result, err error) {
	c := sigmap.NewDecoder(b)
	r.code(c)
	if err := c.Finish(); err != nil {
		return Result{}, err
	}
	if r.Status >= statusEnd {
		return Result{}, sigma.Errorf("op.DecodeResult", sigma.KindInvalid, "there is no status %d", r.Status)
	}
	return r, nil
}

func (r *Result) code(c *sigmap.Coder) {
	c.U8((*uint8)(&r.Status))
	c.Bool(&r.Found)
	c.U32(&r.Flags)
	length := int64(r.Length)
	codeInt(c, &length)
	r.Length = int(length)
	codeInt(c, &r.Expiry)
	c.U64(&r.Version)
	codeInt(c, &r.Number)
	sigmap.Rest(c, &r.Value)
}

// Idempotent says that an operation has the same effect applied once or more often, if nobody else
// changes the key meanwhile.
func (o *Op) Idempotent() bool {
	switch o.Kind {
	case Get, Peek, Expire:
		return true
	case Set, Delete:
		return o.Condition == Always && !o.Old
	}
	return false
}

// Apply applies an operation to a store, at a time in ms since 1970.
func Apply(s *store.Store, o *Op, now int64, buf []byte) (r Result, err error) {
	switch o.Kind {
	case Get:
		it, found := s.Get(o.Key, buf, now)
		r = Result{Found: found, Value: it.Value, Flags: it.Flags, Expiry: it.Expiry, Version: it.Version}
		if !found {
			r.Status = Missing
		}
		return r, nil
	case Peek:
		it, length, found := s.Peek(o.Key, now)
		r = Result{Found: found, Value: buf, Length: length, Flags: it.Flags, Expiry: it.Expiry, Version: it.Version}
		if !found {
			r.Status = Missing
		}
		return r, nil
	}
	r.Value = buf
	err = s.Update(o.Key, now, func(old store.Item, found bool) (store.Item, store.Action) {
		r.Found = found
		if r.Status = o.Condition.check(o, &old, found); r.Status != OK {
			if o.Old {
				r.Value = append(buf, old.Value...)
			}
			return old, store.Leave
		}
		return o.change(old, found, &r)
	})
	return r, err
}

func (c Condition) check(o *Op, old *store.Item, found bool) Status {
	switch {
	case c == IfAbsent && found, c == IfVersion && found && old.Version != o.Version:
		return Refused
	case c >= IfPresent && !found:
		return Missing
	}
	return OK
}

// change says what becomes of an item.
func (o *Op) change(old store.Item, found bool, r *Result) (store.Item, store.Action) {
	if o.Old {
		r.Value = append(r.Value, old.Value...)
	}
	switch o.Kind {
	case Set:
		it := store.Item{Value: o.Value, Flags: o.Flags, Expiry: o.Expiry}
		if o.KeepExpiry {
			it.Expiry = old.Expiry
		}
		return it, store.Put
	case Append, Prepend:
		parts := [][]byte{old.Value, o.Value}
		if o.Kind == Prepend {
			parts = [][]byte{o.Value, old.Value}
		}
		old.Value = bytes.Join(parts, nil)
		r.Length = len(old.Value)
		return old, store.Put
	case Delete, Expire:
		if !found {
			r.Status = Missing
			return old, store.Leave
		}
		if o.Kind == Delete {
			return old, store.Remove
		}
		old.Expiry, r.Expiry = o.Expiry, o.Expiry
		return old, store.Retime
	case Add, Count:
		if old.Value, r.Status = o.sum(old.Value, found, r); r.Status == OK {
			return old, store.Put
		}
	}
	return old, store.Leave
}

// sum gives the number that Add and Count make, as text and in the result.
func (o *Op) sum(old []byte, found bool, r *Result) ([]byte, Status) {
	if o.Kind == Count {
		n, err := strconv.ParseUint(string(old), 10, 64)
		if err != nil && found {
			return nil, NotNumber
		}
		delta := uint64(o.Delta)
		if o.Negative {
			delta = -min(delta, n)
		}
		n += delta
		r.Number = int64(n)
		return strconv.AppendUint(nil, n, 10), OK
	}
	n, err := strconv.ParseInt(string(old), 10, 64)
	switch {
	case found && err != nil:
		return nil, NotNumber
	case o.Delta > 0 && n > math.MaxInt64-o.Delta, o.Delta < 0 && n < math.MinInt64-o.Delta:
		return nil, Overflow
	}
	r.Number = n + o.Delta
	return strconv.AppendInt(nil, r.Number, 10), OK
}
