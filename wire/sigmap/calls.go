package sigmap

import (
	"context"
	"time"

	"sigmaos.dev/sigma"
)

// Well-known callable files of the tree that sigmad serves: system calls are calls on files
// (architecture §4). Their methods are below, but for those of
//
//	/sys/procs, /sys/self  syscalls.go
//	/sys/names             names.go
//	/sys/credentials       credentials.go
//	/sys/machines          kernel/machines/calls.go
//	/sys/init              of the leader of initd too: sched/initd/calls.go
//	/sys/decisions         sched/decision
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

// Methods of /sys/endpoints.
var (
	// CallListen is answered with a socket too if the listener is pushed to.
	CallListen = Method[ListenAsk, sigma.Endpoint]{Name: "listen", Request: codeListenAsk, Reply: (*Coder).Endpoint}
	// CallAccept and CallDial are answered with a socket, and perhaps its memory.
	CallAccept = Method[AcceptAsk, Accepted]{Name: "accept", Request: codeAcceptAsk, Reply: codeAccepted}
	CallDial   = Method[DialAsk, Shared]{Name: "dial", Request: codeDialAsk, Reply: codeShared}
	// CallPool is answered with the sockets of a PoolGrant.
	CallPool  = Method[PoolAsk, PoolGrant]{Name: "pool", Request: (*Coder).PoolAsk, Reply: (*Coder).PoolGrant}
	CallClose = Method[sigma.EndpointID, None]{Name: "close", Request: codeEndpointID}
	// CallRevoke ends the connections of the endpoint too.
	CallRevoke = Method[sigma.Endpoint, None]{Name: "revoke", Request: (*Coder).Endpoint}
	// CallLog is answered with lines of report.ConnectionEvent.
	CallLog = Method[None, []byte]{Name: "log", Reply: Rest}
	// CallRing takes a ticket, and is answered with the connection's memory.
	CallRing    = Method[string, None]{Name: "ring", Request: (*Coder).Str}
	CallEndRing = Method[string, None]{Name: "end-ring", Request: (*Coder).Str}
	// CallMeter is answered with the memory in which the proc counts its traffic.
	CallMeter = Method[None, None]{Name: "meter"}
	// CallDialStream is of services of the system. It is answered with a socket.
	CallDialStream = Method[StreamAsk, None]{Name: "dial-stream", Request: codeStreamAsk}
	// CallEtcd is of named: where the names are, if not in an etcd of its own.
	CallEtcd = Method[None, *Etcd]{Name: "etcd", Reply: (*Coder).Etcd}
	// CallDialEtcd is of named. It takes the name of a member, and is answered with a socket.
	CallDialEtcd = Method[string, None]{Name: "dial-etcd", Request: (*Coder).Str}
	// CallDialServer is of dbd and s3d. It is answered with a socket to the server.
	CallDialServer = Method[ServerName, None]{Name: "dial-server", Request: codeServerName}
)

// Methods of /sys/realms, and of the provider's roots of named, s3d and dbd.
var (
	CallCreateRealm = Method[sigma.RealmID, None]{Name: "create", Request: (*Coder).RealmID}
	CallRemoveRealm = Method[sigma.RealmID, None]{Name: "remove", Request: (*Coder).RealmID}
	// CallListRealms is answered with up to RealmsPage realms after one, by name.
	CallListRealms = Method[sigma.RealmID, []sigma.RealmInfo]{Name: "list", Request: codeRealmAfter,
		Reply: (*Coder).RealmInfos}
	CallSetShares = Method[RealmShares, None]{Name: "set-shares", Request: codeRealmShares}
	CallSetLimits = Method[LimitsOfRealm, None]{Name: "set-limits", Request: codeLimitsOfRealm}
	// CallChanges is of named's and s3d's roots. It is answered with the board of changes, a file.
	CallChanges = Method[None, None]{Name: "changes"}
	// CallUseStore is of s3d's root: in which store the realm's objects are.
	CallUseStore = Method[UseStore, None]{Name: "set-store", Request: codeUseStore}
	// CallStores is of s3d's root too, which answers JSON.
	CallStores = Method[StoresAsk, []byte]{Name: "stores", Request: codeStoresAsk, Reply: Rest}
)

// Methods of /sys/machine.
var (
	CallStatus = Method[None, []Service]{Name: "status", Reply: (*Coder).Services}
	// CallServicesUsage is answered in the order of CallStatus.
	CallServicesUsage = Method[None, []sigma.Usage]{Name: "usage", Reply: (*Coder).Usages}
	CallServer        = Method[ServerAt, None]{Name: "server", Request: codeServerAt}
	CallSetStore      = Method[StoreAt, None]{Name: "set-store", Request: codeStoreAt}
	// CallLeave comes before CallDown. It says whether the procs are to be asked to go.
	CallLeave = Method[bool, Leaving]{Name: "leave", Request: (*Coder).Bool, Reply: codeLeaving}
	// CallDown says whether to stop now, without grace for procs.
	CallDown = Method[bool, None]{Name: "down", Request: (*Coder).Bool}
)

// Methods of /sys/init, by the names of registrations.
var (
	CallInitAdd     = Method[InitAdd, None]{Name: "add", Request: codeInitAdd}
	CallInitRemove  = Method[string, None]{Name: "rm", Request: (*Coder).Str}
	CallInitRestart = Method[string, None]{Name: "restart", Request: (*Coder).Str}
)

// CallEvents is of /sys/events. It takes a report.Cursor as text, and is answered with lines of
// report.Event after that, up to a page.
var CallEvents = Method[string, []byte]{Name: "events", Request: (*Coder).Str, Reply: Rest}

// CallHash is of objects of /s3: the digest of a range of at most HashMax bytes.
var CallHash = Method[HashAsk, Hashed]{Name: "hash", Request: codeHashAsk, Reply: codeHashed}

// ListenAsk asks for a listener.
type ListenAsk struct {
	Form   sigma.ConnForm
	Pushed bool             // a socket is wanted, on which an Arrival comes for each connection
	Again  sigma.EndpointID // that an earlier sigmad made for the proc, to listen there again; "" = a new one
}

// AcceptAsk asks for a connection that somebody has dialled.
type AcceptAsk struct {
	ID    sigma.EndpointID
	Rings bool // the proc can share memory with the other end
}

// DialAsk asks for a connection.
type DialAsk struct {
	To    sigma.Endpoint
	Rings bool // the proc can share memory with the other end
}

// Shared is told to a proc that can share memory.
type Shared struct {
	Rings  bool   // it can; else there is no ticket
	Ticket string // for CallRing; "" = the other end is not on this machine
}

// Accepted is a connection.
type Accepted struct {
	From sigma.Principal
	Shared
}

// StreamAsk names a service of another machine.
type StreamAsk struct {
	Machine sigma.MachineID
	Service string
}

// ServerName names the server of a realm's database, or object store.
type ServerName struct {
	Realm sigma.RealmID
	Name  string
}

// ServerAt says where the server of a realm's database is.
type ServerAt struct {
	ServerName
	Address string // IP address and port; "" = there is none any more
}

// UseStore says which object store a realm has.
type UseStore struct {
	Realm sigma.RealmID // the system's = all that have none of their own
	Text  string        // s3/store.Store as JSON; "" = the local disk
}

// StoreAt says where that store is too.
type StoreAt struct {
	UseStore
	Addresses []string // IP addresses with a port
}

// StoresAsk asks for a page of the stores that were set.
type StoresAsk struct {
	After sigma.RealmID
	Ask   bool // each store is to be asked how it is
}

// LimitsOfRealm are the limits that a realm is to have.
type LimitsOfRealm struct {
	Realm  sigma.RealmID
	Limits sigma.RealmLimits
}

// Leaving is what runs on a machine that is about to be stopped.
type Leaving struct {
	Running uint32
	Some    []sigma.ProcInfo // of those
}

// InitAdd registers a proc.
type InitAdd struct {
	Registration sigma.Registration
	Replace      bool // what is registered under the name, if anything is
}

// HashAsk is a range of an object.
type HashAsk struct {
	Offset uint64
	Count  uint32
}

// Hashed is the digest of a range, and of which object.
type Hashed struct {
	ID   sigma.FileID
	Size uint64 // of the object
	Sum  []byte // BLAKE3
}

func codeListenAsk(c *Coder, a *ListenAsk) {
	c.Str((*string)(&a.Form))
	c.Last(func() { c.Bool(&a.Pushed) })
	c.Last(func() { codeEndpointID(c, &a.Again) })
}

func codeAcceptAsk(c *Coder, a *AcceptAsk) {
	codeEndpointID(c, &a.ID)
	codeRings(c, &a.Rings)
}

func codeDialAsk(c *Coder, a *DialAsk) {
	c.Endpoint(&a.To)
	codeRings(c, &a.Rings)
}

// codeRings is left out by programs that cannot share memory.
func codeRings(c *Coder, rings *bool) {
	there := *rings
	optional(c, &there, func() { c.Bool(rings) })
}

func codeShared(c *Coder, s *Shared) { optional(c, &s.Rings, func() { c.Str(&s.Ticket) }) }

func codeAccepted(c *Coder, a *Accepted) {
	c.Principal(&a.From)
	codeShared(c, &a.Shared)
}

func codeEndpointID(c *Coder, id *sigma.EndpointID) { c.Str((*string)(id)) }

func codeStreamAsk(c *Coder, a *StreamAsk) {
	c.MachineID(&a.Machine)
	c.Str(&a.Service)
}

func codeServerName(c *Coder, s *ServerName) {
	c.RealmID(&s.Realm)
	c.Str(&s.Name)
}

func codeServerAt(c *Coder, s *ServerAt) {
	codeServerName(c, &s.ServerName)
	c.Str(&s.Address)
}

func codeUseStore(c *Coder, s *UseStore) {
	c.RealmID(&s.Realm)
	c.Str(&s.Text)
}

func codeStoreAt(c *Coder, s *StoreAt) {
	codeUseStore(c, &s.UseStore)
	c.Strs(&s.Addresses)
}

func codeStoresAsk(c *Coder, a *StoresAsk) {
	c.RealmID(&a.After)
	c.Bool(&a.Ask)
}

// codeRealmAfter is empty of a program that takes the first page only.
func codeRealmAfter(c *Coder, id *sigma.RealmID) {
	there := true
	optional(c, &there, func() { c.RealmID(id) })
}

func codeLimitsOfRealm(c *Coder, l *LimitsOfRealm) {
	c.RealmID(&l.Realm)
	c.RealmLimits(&l.Limits)
}

func codeLeaving(c *Coder, l *Leaving) {
	c.U32(&l.Running)
	c.ProcInfos(&l.Some)
}

func codeInitAdd(c *Coder, a *InitAdd) {
	c.Registration(&a.Registration)
	c.Bool(&a.Replace)
}

func codeHashAsk(c *Coder, a *HashAsk) {
	c.U64(&a.Offset)
	c.U32(&a.Count)
}

func codeHashed(c *Coder, h *Hashed) {
	c.FileID(&h.ID)
	c.U64(&h.Size)
	c.Data(&h.Sum)
}

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

// ListRealms asks a file that answers CallListRealms for page after page.
func ListRealms(ctx context.Context, to sigma.Caller) (all []sigma.RealmInfo, err error) {
	var after sigma.RealmID
	for {
		page, err := CallListRealms.Ask(ctx, to, after)
		if err != nil {
			return nil, err
		}
		all = append(all, page...)
		if len(page) < RealmsPage || page[len(page)-1].ID <= after {
			return all, nil
		}
		after = page[len(page)-1].ID
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
	List(c, rs, 6, func(r *RealmShares) { codeRealmShares(c, r) })
}

func codeRealmShares(c *Coder, r *RealmShares) {
	c.RealmID(&r.Realm)
	c.U32(&r.Shares)
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
