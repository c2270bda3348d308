package fleet

import (
	"context"
	"encoding/json"
	"net"
	"sync/atomic"
	"time"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
)

// The calls that the coordinator answers. Arguments and answers are JSON.
var (
	ApplyMethod     = &call.Method{Name: "sigma.fleet/Apply"}                       // ApplyArg, ApplyReply
	ScaleMethod     = &call.Method{Name: "sigma.fleet/Scale", Idempotent: true}     // ScaleArg, Record
	PolicyMethod    = &call.Method{Name: "sigma.fleet/Policy", Idempotent: true}    // PolicyArg, Record
	RollMethod      = &call.Method{Name: "sigma.fleet/Roll"}                        // NameArg, Record
	UndoMethod      = &call.Method{Name: "sigma.fleet/Undo"}                        // NameArg, Record
	RemoveMethod    = &call.Method{Name: "sigma.fleet/Remove", Idempotent: true}    // NameArg, nothing
	ListMethod      = &call.Method{Name: "sigma.fleet/List", Idempotent: true}      // nothing, []Status
	StatusMethod    = &call.Method{Name: "sigma.fleet/Status", Idempotent: true}    // NameArg, Status
	HistoryMethod   = &call.Method{Name: "sigma.fleet/History", Idempotent: true}   // NameArg, []Record
	DecisionsMethod = &call.Method{Name: "sigma.fleet/Decisions", Idempotent: true} // NameArg, []Decision

	EnterMethod   = &call.Method{Name: "sigma.fleet.Member/Enter", Idempotent: true}   // EnterArg, nothing
	ReportMethod  = &call.Method{Name: "sigma.fleet.Member/Report", Idempotent: true}  // ReportArg, ReportReply
	LeavingMethod = &call.Method{Name: "sigma.fleet.Member/Leaving", Idempotent: true} // MemberArg, nothing
)

// NameArg names a fleet.
type NameArg struct {
	Name string `json:"name"`
}

// ApplyArg asks for a Spec to be in force. If Generation is not 0 and not that of the fleet's
// record, somebody else has changed it, and the answer is KindVersion.
type ApplyArg struct {
	Spec       Spec   `json:"spec"`
	Generation uint64 `json:"generation,omitempty"`
	Plan       bool   `json:"plan,omitempty"` // only tell what would change
}

// ApplyReply tells what was changed, or would be.
type ApplyReply struct {
	Record  Record   `json:"record"`
	Changes []Change `json:"changes"`       // none = it was so already
	Rolls   bool     `json:"rolls"`         // members are replaced
	Made    bool     `json:"made"`          // there was no such fleet
	Was     uint64   `json:"was,omitempty"` // the generation before
}

// Change is one key of a description, as JSON before and after; "" = absent.
type Change struct {
	Key string `json:"key"`
	Old string `json:"old,omitempty"`
	New string `json:"new,omitempty"`
}

// ScaleArg sets the bounds of a fleet's size; nil = as it is.
type ScaleArg struct {
	Name  string `json:"name"`
	Least *int   `json:"least,omitempty"`
	Most  *int   `json:"most,omitempty"`
}

// PolicyArg sets how clients choose a member.
type PolicyArg struct {
	Name   string     `json:"name"`
	Policy sdk.Policy `json:"policy"`
}

// MemberArg names a member. The coordinator believes it only of the proc that calls.
type MemberArg struct {
	Name     string `json:"name"`
	Revision uint64 `json:"revision"`
}

// EnterArg is a member's question whether clients may be sent to it. The call is answered when its
// first health check was good; a member that is not wanted gets KindPermission.
type EnterArg struct {
	MemberArg
	Endpoint string `json:"endpoint"`
}

// ReportArg is a member's load.
type ReportArg struct {
	MemberArg
	Load Load `json:"load"`
}

// ReportReply says when the next report is due.
type ReportReply struct {
	Next Duration `json:"next"`
	// Spread rises when there are new members: connections are to be made anew, so that the new
	// members get their part of them.
	Spread uint64 `json:"spread"`
}

// Client speaks to the coordinator of a realm. Safe for concurrent use. Close it.
type Client struct {
	calls  *call.Client
	closed atomic.Bool
}

// NewClient makes a Client. It starts nothing.
func NewClient(c *sdk.Client) *Client {
	return &Client{calls: call.NewClient(func(ctx context.Context) (net.Conn, error) {
		conn, err := c.DialPath(ctx, Leader)
		if err != nil {
			return nil, &sigma.Error{Op: "fleet.Client", Path: Leader, Kind: sigma.KindUnavailable,
				Msg: "no coordinator of fleets can be reached", Err: err}
		}
		return conn, nil
	}, call.Config{})}
}

// Close ends the connection. Calls that wait for a coordinator fail with KindUnavailable.
func (c *Client) Close() error {
	c.closed.Store(true)
	return c.calls.Close()
}

// Apply puts a Spec in force, or with plan only tells what would change. Without a generation it is
// made again if the coordinator died under it: to apply a Spec twice is to apply it once, and the
// answer may say then that nothing was changed.
func (c *Client) Apply(ctx context.Context, arg ApplyArg) (r ApplyReply, err error) {
	m := *ApplyMethod
	m.Idempotent = arg.Generation == 0
	return r, c.Call(ctx, &m, arg, &r)
}

// Scale sets the bounds of a fleet's size.
func (c *Client) Scale(ctx context.Context, arg ScaleArg) (r Record, err error) {
	return r, c.Call(ctx, ScaleMethod, arg, &r)
}

// SetPolicy sets how clients choose a member.
func (c *Client) SetPolicy(ctx context.Context, name string, p sdk.Policy) (r Record, err error) {
	return r, c.Call(ctx, PolicyMethod, PolicyArg{name, p}, &r)
}

// Roll replaces all members by new ones of the same description.
func (c *Client) Roll(ctx context.Context, name string) (r Record, err error) {
	return r, c.Call(ctx, RollMethod, NameArg{name}, &r)
}

// Undo goes back to the description before: of a roll under way, or the last one of the history.
func (c *Client) Undo(ctx context.Context, name string) (r Record, err error) {
	return r, c.Call(ctx, UndoMethod, NameArg{name}, &r)
}

// Remove has all members asked to go and the fleet forgotten when they have ended.
func (c *Client) Remove(ctx context.Context, name string) error {
	return c.Call(ctx, RemoveMethod, NameArg{name}, nil)
}

// List tells of all fleets of the realm, by name, without their members.
func (c *Client) List(ctx context.Context) (all []Status, err error) {
	return all, c.Call(ctx, ListMethod, nil, &all)
}

// Status tells of one fleet and its members.
func (c *Client) Status(ctx context.Context, name string) (s Status, err error) {
	return s, c.Call(ctx, StatusMethod, NameArg{name}, &s)
}

// History tells the records that were in force, oldest first; the last is in force.
func (c *Client) History(ctx context.Context, name string) (rs []Record, err error) {
	return rs, c.Call(ctx, HistoryMethod, NameArg{name}, &rs)
}

// Decisions tells what the coordinators of a fleet decided lately, oldest first.
func (c *Client) Decisions(ctx context.Context, name string) (ds []Decision, err error) {
	return ds, c.Call(ctx, DecisionsMethod, NameArg{name}, &ds)
}

// againAfter is the pause before a call is tried at the next coordinator.
const againAfter = 50 * time.Millisecond

// Call makes one of the calls above. While no coordinator leads it waits for one until ctx ends.
func (c *Client) Call(ctx context.Context, m *call.Method, arg, reply any) error {
	var in []byte
	if arg != nil {
		var err error
		if in, err = json.Marshal(arg); err != nil {
			return wrong("the argument cannot be written: %s", reasonOf(err))
		}
	}
	for {
		out, err := c.calls.Call(ctx, m, in, nil)
		if err == nil {
			if reply == nil {
				return nil
			}
			return json.Unmarshal(out, reply)
		}
		if sigma.KindOf(err) != sigma.KindUnavailable || ctx.Err() != nil || c.closed.Load() {
			return err
		}
		if !retry.Pause(ctx, againAfter) {
			return &sigma.Error{Op: "fleet.Client", Path: Leader, Kind: sigma.KindUnavailable,
				Msg: "no coordinator of fleets answers", Hint: "sigma fleet apply starts it; sigma init ls tells how it is",
				Err: ctx.Err()}
		}
	}
}
