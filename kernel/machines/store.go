package machines

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
	"sigmaos.dev/wire/sigmap"
)

// FileStore keeps the state as one file of a name space, readable by people, that each judge
// replaces at the version it knows. So of two judges only one can save, and who takes over ends the
// other: there is no lease to wait for and no clock to trust. It is for one goroutine.
type FileStore struct {
	ns      sigma.Namespace
	path    string
	judge   sigma.MachineID
	version sigma.Version
	epoch   uint64
	members map[sigma.MachineID]Member
	tokens  map[identity.TokenID]Token
}

// record is the file's content.
type record struct {
	Format int             // recordFormat
	Judge  sigma.MachineID // who wrote it last
	State
}

const (
	recordFormat = 1
	recordMax    = sigmap.DataMax // what one message carries, and so is replaced atomically: about 200 machines
	saveTries    = 20             // while the store cannot be reached, with a pause in between
	savePause    = 250 * time.Millisecond
)

var _ Store = (*FileStore)(nil)

// TakeOver reads the state from path, or begins with none, and makes judge the one who may write
// it. The directory of path must exist. former, unless it is "", is who must have been the judge
// until now: of several heirs only one succeeds, the others get KindStale.
func TakeOver(ctx context.Context, ns sigma.Namespace, path string, judge, former sigma.MachineID) (*FileStore, State,
	error) {
	s := &FileStore{ns: ns, path: path, judge: judge, members: map[sigma.MachineID]Member{},
		tokens: map[identity.TokenID]Token{}}
	text, id, err := ns.Get(ctx, path)
	switch {
	case sigma.KindOf(err) == sigma.KindNotFound:
	case err != nil:
		return nil, State{}, sigma.Wrap("machines.TakeOver", path, err)
	default:
		st, is, err := parseRecord(text)
		if err != nil {
			return nil, State{}, sigma.Wrap("machines.TakeOver", path, err)
		}
		if former != "" && is != former && is != judge {
			return nil, State{}, sigma.Errorf("machines.TakeOver", sigma.KindStale, "machine %s has taken over already",
				is)
		}
		s.version, s.epoch = id.Version, st.Epoch
		for _, m := range st.Members {
			s.members[m.ID] = m
		}
		for _, t := range st.Tokens {
			s.tokens[t.ID] = t
		}
	}
	if err := s.write(ctx); err != nil {
		return nil, State{}, err
	}
	return s, s.state(), nil
}

// Look reads the state without taking it over, and says who the judge is.
func Look(ctx context.Context, ns sigma.Namespace, path string) (State, sigma.MachineID, error) {
	text, _, err := ns.Get(ctx, path)
	if err != nil {
		return State{}, "", sigma.Wrap("machines.Look", path, err)
	}
	return parseRecord(text)
}

// ParseState decodes a file of a FileStore.
func ParseState(text []byte) (State, error) {
	st, _, err := parseRecord(text)
	return st, err
}

// succeedStep is more than the lives that may have begun since a snapshot was taken, so that none
// has the number of one of these.
const succeedStep = 1 << 20

// Succeed makes of the file of a FileStore in a snapshot the one with which machine self begins: it
// decides, whoever did when the snapshot was taken, and is the only control machine. Those that
// were control machines besides are no members any more, and tokens, which may have been used
// since, let nobody in. KindNotFound: self is no machine of that system.
func Succeed(text []byte, self sigma.MachineID) ([]byte, error) {
	const op = "machines.Succeed"
	st, _, err := parseRecord(text)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(st.Members, func(m Member) bool { return m.ID == self })
	if at < 0 {
		return nil, &sigma.Error{Op: op, Kind: sigma.KindNotFound,
			Msg: fmt.Sprintf("machine %s had not joined when the snapshot was taken", self),
			Hint: "restore it on a machine that had, or on a fresh data directory: sigma snapshot restore --data DIR " +
				"FILE"}
	}
	st.Members[at].Control = true
	st.Members = slices.DeleteFunc(st.Members, func(m Member) bool { return m.Control && m.ID != self })
	st.Epoch, st.Tokens = st.Epoch+succeedStep, nil
	text, err = json.MarshalIndent(record{recordFormat, self, st}, "", "\t")
	return text, sigma.Wrap(op, "", err)
}

func parseRecord(text []byte) (State, sigma.MachineID, error) {
	var r record
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	err := d.Decode(&r)
	switch {
	case err != nil:
		return State{}, "", &sigma.Error{Op: "machines.ParseState", Kind: sigma.KindInvalid,
			Msg: "the record of the machines cannot be read", Err: err}
	case r.Format != recordFormat:
		return State{}, "", sigma.Errorf("machines.ParseState", sigma.KindUnsupported,
			"the record of the machines has format %d, this program knows %d", r.Format, recordFormat)
	}
	for _, m := range r.Members {
		if err := m.ID.Check(); err != nil {
			return State{}, "", sigma.Wrap("machines.ParseState", "", err)
		}
	}
	return r.State, r.Judge, nil
}

func (s *FileStore) state() State {
	st := State{Epoch: s.epoch}
	for _, id := range slices.Sorted(maps.Keys(s.members)) {
		st.Members = append(st.Members, s.members[id])
	}
	for _, id := range slices.Sorted(maps.Keys(s.tokens)) {
		st.Tokens = append(st.Tokens, s.tokens[id])
	}
	return st
}

// Save implements Store. KindStale: another judge has taken over.
func (s *FileStore) Save(ctx context.Context, effects []Effect) error {
	for _, f := range effects {
		switch f := f.(type) {
		case SaveEpoch:
			s.epoch = f.Epoch
		case SaveMember:
			s.members[f.Member.ID] = f.Member
		case DropMember:
			delete(s.members, f.ID)
		case SaveToken:
			s.tokens[f.Token.ID] = f.Token
		case DropToken:
			delete(s.tokens, f.ID)
		}
	}
	return s.write(ctx)
}

// write replaces the file. If the answer is lost, the file tells whether it was.
func (s *FileStore) write(ctx context.Context) error {
	const op = "machines.Save"
	text, err := json.MarshalIndent(record{recordFormat, s.judge, s.state()}, "", "\t")
	if err != nil {
		return sigma.Wrap(op, s.path, err)
	}
	if len(text) > recordMax {
		return sigma.Errorf(op, sigma.KindTooBig, "the record of the machines has %d bytes, %d are possible", len(text),
			recordMax)
	}
	for try := 1; ; try++ {
		id, err := s.ns.Put(ctx, s.path, text, sigma.PutOptions{Perm: 0o600, IfVersion: s.version,
			MustMake: s.version == 0})
		if err == nil {
			s.version = id.Version
			return nil
		}
		switch sigma.KindOf(err) {
		case sigma.KindVersion, sigma.KindExists, sigma.KindLost, sigma.KindTimeout:
			now, id, rerr := s.ns.Get(ctx, s.path)
			switch {
			case rerr == nil && bytes.Equal(now, text):
				s.version = id.Version
				return nil
			case rerr == nil && id.Version != s.version:
				return sigma.Errorf(op, sigma.KindStale, "another control machine decides about membership now")
			}
		case sigma.KindUnavailable, sigma.KindBusy:
		default:
			return sigma.Wrap(op, s.path, err)
		}
		if try == saveTries {
			return sigma.Wrap(op, s.path, err)
		}
		if !retry.Pause(ctx, savePause) {
			return sigma.Wrap(op, s.path, errors.Join(ctx.Err(), err))
		}
	}
}
