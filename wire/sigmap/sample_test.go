package sigmap

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"reflect"
	"time"

	"sigmaos.dev/sigma"
)

// payload is a coder of something that calls carry.
type payload struct {
	value any // a pointer
	code  func(*Coder)
}

// payloads makes one of each, to be filled or coded.
func payloads() map[string]payload {
	out := map[string]payload{}
	var (
		id          sigma.ProcID
		ids         []sigma.ProcID
		realm       sigma.RealmID
		descriptor  sigma.Descriptor
		descriptors []sigma.Descriptor
		status      sigma.Status
		info        sigma.ProcInfo
		infos       []sigma.ProcInfo
		usages      []sigma.Usage
		principal   sigma.Principal
		self        Info
		endpoint    sigma.Endpoint
		realms      []sigma.RealmInfo
		services    []Service
		caps        Caps
		arrival     Arrival
		ask         PoolAsk
		grant       PoolGrant
	)
	out["ProcID"] = payload{&id, func(c *Coder) { c.ProcID(&id) }}
	out["ProcIDs"] = payload{&ids, func(c *Coder) { c.ProcIDs(&ids) }}
	out["RealmID"] = payload{&realm, func(c *Coder) { c.RealmID(&realm) }}
	out["Descriptor"] = payload{&descriptor, func(c *Coder) { c.Descriptor(&descriptor) }}
	out["Descriptors"] = payload{&descriptors, func(c *Coder) { c.Descriptors(&descriptors) }}
	out["Status"] = payload{&status, func(c *Coder) { c.Status(&status) }}
	out["ProcInfo"] = payload{&info, func(c *Coder) { c.ProcInfo(&info) }}
	out["ProcInfos"] = payload{&infos, func(c *Coder) { c.ProcInfos(&infos) }}
	out["Usages"] = payload{&usages, func(c *Coder) { c.Usages(&usages) }}
	out["Principal"] = payload{&principal, func(c *Coder) { c.Principal(&principal) }}
	out["Info"] = payload{&self, func(c *Coder) { c.Info(&self) }}
	out["Endpoint"] = payload{&endpoint, func(c *Coder) { c.Endpoint(&endpoint) }}
	out["RealmInfos"] = payload{&realms, func(c *Coder) { c.RealmInfos(&realms) }}
	out["Caps"] = payload{&caps, func(c *Coder) { c.Caps(&caps) }}
	out["Arrival"] = payload{&arrival, func(c *Coder) { c.Arrival(&arrival) }}
	out["PoolAsk"] = payload{&ask, func(c *Coder) { c.PoolAsk(&ask) }}
	out["PoolGrant"] = payload{&grant, func(c *Coder) { c.PoolGrant(&grant) }}
	out["Services"] = payload{&services, func(c *Coder) { c.Services(&services) }}
	return out
}

// sampler fills values of any type of a message with numbers of src, within what their layout can
// carry.
type sampler struct {
	*rand.Rand
	wide map[reflect.Type]bool // messages whose ids carry the whole version
}

func newSampler(seed uint64) sampler {
	wide := map[reflect.Type]bool{}
	for _, m := range []Message{new(Rget), new(Rput), new(Rlist), new(Rdescribe)} {
		wide[reflect.TypeOf(m).Elem()] = true
	}
	return sampler{rand.New(rand.NewPCG(seed, seed)), wide}
}

func (s sampler) fill(v reflect.Value, wide bool) {
	switch p := v.Addr().Interface().(type) {
	case *sigma.FileID:
		*p = sigma.FileID{Kind: sigma.FileKind(s.IntN(6)), Path: s.Uint64(), Version: sigma.Version(s.Uint32())}
		if wide {
			p.Version = sigma.Version(s.Uint64())
		}
		return
	case *sigma.PutOptions:
		*p = sigma.PutOptions{Kind: []sigma.FileKind{sigma.KindFile, sigma.KindSymlink, sigma.KindEndpoint}[s.IntN(3)],
			Perm: s.Uint32(), MustMake: s.IntN(2) == 0,
			MustExist: s.IntN(2) == 0, Append: s.IntN(2) == 0, Wait: s.IntN(2) == 0,
			IfVersion: sigma.Version(s.Uint64()), Lease: sigma.LeaseID(s.Uint64())}
		return
	case *sigma.Endpoint:
		id := make([]byte, 16)
		for i := range id {
			id[i] = byte(s.Uint32())
		}
		*p = sigma.Endpoint{Realm: "tenant", Machine: "machine-1", Proc: sigma.NewProcID(),
			ID: sigma.EndpointID(base64.RawURLEncoding.EncodeToString(id)), Form: sigma.FormTree}
		return
	case *Message: // in a Twith; a Tfsync may be shorter, which those who cut messages would stumble over
		t := typeTwith
		for New(t) == nil || t%2 != 0 || t == typeTwith || t == typeTversion || t == typeTflush || t == typeTfsync {
			t = Type(s.IntN(256))
		}
		*p = s.message(t)
		return
	case *Rwith:
		t := typeTwith
		for New(t) == nil || t%2 == 0 || t == typeTwith+1 || t == typeTversion+1 || t == typeTflush+1 ||
			t == typeRreset {
			t = Type(s.IntN(256))
		}
		*p = Rwith{Age: time.Duration(1 + s.Uint64()>>2), Reply: s.message(t)}
		return
	case *sigma.Once:
		if s.IntN(4) > 0 {
			*p = sigma.Once{Client: 1 + s.Uint64()>>1, Seq: 1<<63 + s.Uint64()>>1, Done: s.Uint64() >> 1,
				Again: s.IntN(2) == 0}
		}
		return
	case *sigma.Fence:
		*p = sigma.Fence{Name: "f" + s.text(), Epoch: sigma.Epoch(s.Uint64())}
		return
	case *time.Time:
		if s.IntN(4) > 0 {
			*p = time.Unix(0, s.Int64()).UTC()
		}
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			s.fill(v.Field(i), wide || s.wide[v.Type()])
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes([]byte(s.text()))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), s.IntN(4), 4))
		fallthrough
	case reflect.Array:
		for i := range v.Len() {
			s.fill(v.Index(i), wide)
		}
	case reflect.String:
		v.SetString(s.text())
	case reflect.Bool:
		v.SetBool(s.IntN(2) == 0)
	case reflect.Int: // what is an int here travels as 32 bits
		v.SetInt(int64(s.Int32()))
	case reflect.Int64:
		v.SetInt(s.Int64())
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(s.Uint64() >> (64 - v.Type().Bits()))
	default:
		panic(fmt.Sprintf("a sample of %v", v.Type()))
	}
}

// text is up to 11 bytes, not always UTF-8, sometimes many.
func (s sampler) text() string {
	n := s.IntN(12)
	if s.IntN(50) == 0 {
		n = 3000
	}
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(s.Uint32())
	}
	return string(b)
}

// message gives a filled message of each type.
func (s sampler) message(t Type) Message {
	m := New(t)
	if m != nil {
		s.fill(reflect.ValueOf(m).Elem(), false)
	}
	return m
}
