package sigmap

import (
	"time"

	"sigmaos.dev/sigma"
)

// Well-known callable files of the tree that sigmad serves, and their methods (architecture §4:
// system calls are calls on files). The layouts below are their payloads; an empty payload is
// written as -. Those of /sys/procs and /sys/self are in syscalls.go.
//
//	/sys/endpoints  listen     form, pushed, again -> Endpoint accept      EndpointID -> Principal + socket
//	                           (pushed: + a socket, on which an Arrival comes for each accept that would be; again: the
//	                           EndpointID that an earlier sigmad made for the proc, to listen there again)
//	                dial       Endpoint -> - + socket          close       EndpointID -> -
//	                pool       PoolAsk -> PoolGrant + sockets
//	                dial-stream machine, service -> - + socket (of the system's services only: to the same service of another machine)
//	                etcd       - -> Etcd (to named only: where the names are, if not in an etcd of its own)
//	                dial-etcd  name of one of its members -> - + socket (of named only)
//	                dial-server RealmID, name of a database -> - + socket (of dbd only: to the database's server)
//	/sys/realms     create     RealmID -> -                    remove      RealmID -> -     list  RealmID -> []RealmInfo: up to RealmsPage after that one, by name
//	                set-shares RealmID, shares -> -            set-limits RealmID, RealmLimits -> -
//	/sys/init       add        Registration -> -               rm          name -> -
//	                look, spawn, stop (of the leader of initd; sched/initd/calls.go)
//	/sys/events     events     report.Cursor as text -> lines of report.Event after that, up to a page
//	/sys/machine    status     - -> []Service                  down        - -> -
//	                server     RealmID, name of a database, IP address and port of its server ("" = none) -> - (provider)
//	                usage      - -> []Usage, in the order of status
//	/sys/machines   to the provider: what machined answers operators (kernel/machines/service.go), and membership (kernel/machines/membership.go)
//	objects of /s3  hash       offset, count (u32) -> FileID, size, BLAKE3 (data) of that range
const (
	FileProcs     = "procs"
	FileSelf      = "self"
	FileEndpoints = "endpoints"
	FileRealms    = "realms"
	FileMachine   = "machine"
	FileMachines  = "machines"
	FileInit      = "init"
	FileEvents    = "events"
	FileDecisions = "decisions"
)

// Methods of the well-known files.
const (
	CallList        = "list"
	CallUsage       = "usage"
	CallListen      = "listen"
	CallAccept      = "accept"
	CallDial        = "dial"
	CallPool        = "pool"
	CallClose       = "close"
	CallRevoke      = "revoke"
	CallLog         = "log"
	CallRing        = "ring"
	CallEndRing     = "end-ring"
	CallMeter       = "meter"
	CallDialStream  = "dial-stream"
	CallEtcd        = "etcd"
	CallDialEtcd    = "dial-etcd"
	CallServer      = "server"
	CallDialServer  = "dial-server"
	CallSetStore    = "set-store"
	CallStores      = "stores"
	CallCreate      = "create"
	CallRemove      = "remove"
	CallSetShares   = "set-shares"
	CallSetLimits   = "set-limits"
	CallChanges     = "changes" // of named and s3d, to the provider: - -> - + file descriptor
	CallStatus      = "status"
	CallLeave       = "leave" // before down: bool evict -> u32 procs, ProcInfos
	CallDown        = "down"  // bool now -> -
	CallHash        = "hash"
	CallInitAdd     = "add"
	CallInitRemove  = "rm"
	CallInitRestart = "restart"
	CallEvents      = "events"
)

// RealmsPage is how many realms one list has; after fewer there are no more.
const RealmsPage = 400

// HashMax is the largest range that hash takes.
const HashMax = 1 << 20

// Service is one line of a machine's status.
type Service struct {
	Name     string
	Proc     sigma.ProcID
	State    string // "running", "starting", "restarting"
	Since    time.Time
	Restarts uint32
}

// Payload encodes with f; the payloads of calls are small, so an error can only be a program's own
// oversize.
func Payload(f func(*Coder)) ([]byte, error) {
	c := NewEncoder(nil)
	f(c)
	return payloadOf(c)
}

func payloadOf(c *Coder) ([]byte, error) {
	if len(c.buf) > DataMax {
		c.Fail("the call's payload exceeds 60 KiB; split the request")
	}
	return c.buf, c.Finish()
}

// Fit is how many of the first items go in one payload, as code encodes them: all, or about half of
// them, and so on, but one at least. Whoever sends items whose length others choose must use it:
// one payload that is too large would end the session that it is sent by, for everybody's items.
func Fit[T any](items []T, code func(*Coder, *[]T)) int {
	n := len(items)
	for ; n > 1; n = (n + 1) / 2 {
		some := items[:n]
		if _, err := encode(&Coder{}, code, &some); err == nil {
			break
		}
	}
	return n
}

// Parse decodes all of payload with f.
func Parse(payload []byte, f func(*Coder)) error {
	c := NewDecoder(payload)
	f(c)
	return c.Finish()
}

// ProcID is a string.
func (c *Coder) ProcID(id *sigma.ProcID) { c.Str((*string)(id)) }

// RealmID is a string.
func (c *Coder) RealmID(id *sigma.RealmID) { c.Str((*string)(id)) }

// ProcIDs is a counted list.
func (c *Coder) ProcIDs(ids *[]sigma.ProcID) {
	List(c, ids, 2, func(id *sigma.ProcID) { c.ProcID(id) })
}

// What a Descriptor may have at its end.
const (
	descriptorView = 1 << iota
	descriptorNear
)

// Descriptor is what Spawn takes.
func (c *Coder) Descriptor(d *sigma.Descriptor) {
	c.Str(&d.Program)
	c.Str(&d.Name)
	c.Strs(&d.Args)
	c.Strs(&d.Env)
	c.U8((*uint8)(&d.Class))
	c.U32((*uint32)(&d.CPU))
	c.U64((*uint64)(&d.Memory))
	c.U8((*uint8)(&d.Start))
	c.Str(&d.TraceParent)
	c.Str((*string)(&d.Profile))
	c.Strs(&d.Where)
	c.Str(&d.Spread)
	var more uint8
	if d.View != nil {
		more |= descriptorView
	}
	if d.Near != "" {
		more |= descriptorNear
	}
	if c.U8(&more); more > descriptorView|descriptorNear {
		c.Fail("a descriptor has something that is not known here")
	}
	if more&descriptorView != 0 {
		c.View(&d.View)
	}
	if more&descriptorNear != 0 {
		c.Str((*string)(&d.Near))
	}
}

// Registration is what /sys/init add takes.
func (c *Coder) Registration(r *sigma.Registration) {
	c.Str(&r.Name)
	c.Str((*string)(&r.Restart))
	c.U32(&r.Most)
	c.Descriptor(&r.Descriptor)
}

// View is a counted list of path, target, rights (u8).
func (c *Coder) View(v *[]sigma.ViewEntry) {
	List(c, v, 5, func(e *sigma.ViewEntry) { c.Str(&e.Path); c.Str(&e.Target); c.U8((*uint8)(&e.Rights)) })
}

// Descriptors is a counted list.
func (c *Coder) Descriptors(ds *[]sigma.Descriptor) { List(c, ds, 29, c.Descriptor) }

// Status is how a proc ended.
func (c *Coder) Status(s *sigma.Status) {
	code := uint32(s.ExitCode)
	c.U8((*uint8)(&s.Code))
	c.U32(&code)
	c.U16((*uint16)(&s.Kind))
	c.Str(&s.Msg)
	c.Data(&s.Data)
	if c.decoding {
		s.ExitCode = int(int32(code))
	}
}

// ProcInfo describes a proc.
func (c *Coder) ProcInfo(p *sigma.ProcInfo) {
	c.ProcID(&p.ID)
	c.RealmID(&p.Realm)
	c.Str(&p.Name)
	c.Str(&p.Program)
	c.Strs(&p.Args)
	c.ProcID(&p.Parent)
	c.Str((*string)(&p.Machine))
	c.U8((*uint8)(&p.Class))
	c.U32((*uint32)(&p.CPU))
	c.U64((*uint64)(&p.Memory))
	c.Str((*string)(&p.Profile))
	c.U8((*uint8)(&p.State))
	c.Bool(&p.Frozen)
	c.Status(&p.Status)
	for _, t := range []*time.Time{&p.Times.Spawned, &p.Times.Placed, &p.Times.Contained, &p.Times.Executed,
		&p.Times.Started, &p.Times.Ended} {
		c.Time(t)
	}
	c.Timing(&p.Timing)
	c.Usage(&p.Usage)
}

// Timing is a list of one duration for each phase.
func (c *Coder) Timing(t *sigma.Timing) {
	n := len(t)
	if c.Count(&n, 8); n != len(t) {
		c.Fail("a start has another number of phases")
		return
	}
	for i := range t {
		c.Duration(&t[i])
	}
}

// Usage is what a proc consumes.
func (c *Coder) Usage(u *sigma.Usage) {
	c.Duration(&u.UserTime)
	c.Duration(&u.SystemTime)
	c.U64((*uint64)(&u.Memory))
	c.U64((*uint64)(&u.MemoryPeak))
	c.U32(&u.Tasks)
	c.U64((*uint64)(&u.Output))
	t := &u.Traffic
	for _, n := range []*uint64{(*uint64)(&t.Sent), (*uint64)(&t.Received), &t.Messages, (*uint64)(&t.Egress),
		(*uint64)(&t.Ingress)} {
		c.U64(n)
	}
}

// Usages is a counted list.
func (c *Coder) Usages(us *[]sigma.Usage) { List(c, us, 84, c.Usage) }

// ProcInfos is a counted list.
func (c *Coder) ProcInfos(ps *[]sigma.ProcInfo) { List(c, ps, 144, c.ProcInfo) }

// Principal is who calls.
func (c *Coder) Principal(p *sigma.Principal) {
	c.RealmID(&p.Realm)
	c.ProcID(&p.Proc)
	c.Str((*string)(&p.Machine))
	c.Bool(&p.System)
}

// Info is what /sys/self info answers.
func (c *Coder) Info(i *Info) {
	c.Principal(&i.Principal)
	c.Str(&i.Version)
}

// Endpoint is its text.
func (c *Coder) Endpoint(e *sigma.Endpoint) {
	text := ""
	if !c.decoding {
		text = e.String()
	}
	c.Str(&text)
	if c.decoding && c.err == nil {
		*e, c.err = sigma.ParseEndpoint(text)
	}
}

// RealmLimits are numbers, in the order in which they came to be.
func (c *Coder) RealmLimits(l *sigma.RealmLimits) {
	bytes, scratch := uint64(l.Bytes), uint64(l.Scratch)
	c.U64(&l.Names)
	c.U64(&bytes)
	c.U64(&l.Watches)
	c.U64(&l.Leases)
	c.U64(&l.Sessions)
	c.U64(&l.Handles)
	c.U64(&scratch)
	for _, v := range []*sigma.MilliCPU{&l.MaxCPU, &l.MinCPU, &l.ReserveCPU} {
		c.U32((*uint32)(v))
	}
	for _, v := range []*sigma.Bytes{&l.MaxMemory, &l.MinMemory, &l.ReserveMemory} {
		c.U64((*uint64)(v))
	}
	if c.decoding {
		l.Bytes, l.Scratch = sigma.Bytes(bytes), sigma.Bytes(scratch)
	}
}

// ListRealms asks for page after page.
func ListRealms(ask func(encode, decode func(*Coder)) error) (all []sigma.RealmInfo, err error) {
	for {
		var after sigma.RealmID
		if len(all) > 0 {
			after = all[len(all)-1].ID
		}
		var page []sigma.RealmInfo
		if err := ask(func(c *Coder) { c.RealmID(&after) }, func(c *Coder) { c.RealmInfos(&page) }); err != nil {
			return nil, err
		}
		all = append(all, page...)
		if len(page) < RealmsPage || page[len(page)-1].ID <= after {
			return all, nil
		}
	}
}

// RealmInfos is a counted list.
func (c *Coder) RealmInfos(rs *[]sigma.RealmInfo) {
	List(c, rs, 50, func(r *sigma.RealmInfo) {
		n := uint32(r.Procs)
		c.RealmID(&r.ID)
		c.Time(&r.Created)
		c.U32(&n)
		c.U32(&r.Shares)
		c.RealmLimits(&r.Limits)
		if c.decoding {
			r.Procs = int(n)
		}
	})
}

// WorksMax is how many realms' work one report has at most.
const WorksMax = 400

// Works is a counted list.
func (c *Coder) Works(ws *[]sigma.Work) {
	List(c, ws, 34, func(w *sigma.Work) {
		c.RealmID(&w.Realm)
		c.U64(&w.Requests)
		c.U64((*uint64)(&w.In))
		c.U64((*uint64)(&w.Out))
		c.Duration(&w.CPU)
	})
}

// RealmShares is what a realm has.
type RealmShares struct {
	Realm  sigma.RealmID
	Shares uint32
}

// RealmsShares is a counted list.
func (c *Coder) RealmsShares(rs *[]RealmShares) {
	List(c, rs, 6, func(r *RealmShares) {
		c.RealmID(&r.Realm)
		c.U32(&r.Shares)
	})
}

// Services is a counted list.
func (c *Coder) Services(ss *[]Service) {
	List(c, ss, 18, func(s *Service) {
		c.Str(&s.Name)
		c.ProcID(&s.Proc)
		c.Str(&s.State)
		c.Time(&s.Since)
		c.U32(&s.Restarts)
	})
}

// What a listener's socket brings, and the call by which connections are made in advance
// (docs/adr/0029).

// PoolMost is how many connections of one proc to one endpoint are made and not begun.
const PoolMost = 32

// ArrivalMax bounds an Arrival's bytes.
const ArrivalMax = 16 << 10

// Arrival is a record on the socket of a listener: somebody has dialled, and the socket comes with
// it, and perhaps memory; or, if Pool is not 0, somebody has connections that were made in advance,
// whose sockets come with it, behind that of the line on which he says which begin, if it has no
// line yet.
type Arrival struct {
	Pool    uint64
	From    sigma.Principal // as sigmad knows it
	First   uint64          // of a pool: number of the first connection; the others follow
	Line    bool            // of a pool: the first socket is its line
	Tickets []string        // one for each connection; "" if it can have no memory
}

// Arrival is its layout.
func (c *Coder) Arrival(a *Arrival) {
	c.U64(&a.Pool)
	c.Principal(&a.From)
	c.U64(&a.First)
	c.Bool(&a.Line)
	c.poolStrs(&a.Tickets)
}

// PoolAsk asks for connections to be made in advance.
type PoolAsk struct {
	Endpoint sigma.Endpoint
	Unused   []uint64 // those of before that have not begun
	Count    uint32   // wanted besides; 0 = none
	Over     bool     // nor is the pool wanted any more
}

// PoolAsk is its layout.
func (c *Coder) PoolAsk(a *PoolAsk) {
	c.Endpoint(&a.Endpoint)
	n := len(a.Unused)
	if c.Count(&n, 8); n > PoolMost {
		c.Fail("more unused connections than a pool has")
		return
	}
	if c.decoding {
		a.Unused = make([]uint64, n)
	}
	for i := range a.Unused {
		c.U64(&a.Unused[i])
	}
	c.U32(&a.Count)
	c.Bool(&a.Over)
}

// PoolGrant answers it, with the sockets: first that of the line, if Line, then of each connection,
// and behind those the memory of each, or none.
type PoolGrant struct {
	Line    bool
	First   uint64
	Tickets []string
}

// PoolGrant is its layout.
func (c *Coder) PoolGrant(g *PoolGrant) {
	c.Bool(&g.Line)
	c.U64(&g.First)
	c.poolStrs(&g.Tickets)
}

// poolStrs are strings, PoolMost at most.
func (c *Coder) poolStrs(v *[]string) {
	n := len(*v)
	if c.Count(&n, 2); n > PoolMost {
		c.Fail("more connections than a pool has")
		return
	}
	if c.decoding {
		*v = make([]string, n)
	}
	for i := range *v {
		c.Str(&(*v)[i])
	}
}
