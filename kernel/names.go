package kernel

import (
	"context"
	"sync"

	"sigmaos.dev/namespace"
	"sigmaos.dev/session"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// realmNames is the machine's session to named for one realm. A realm of its own session cannot use up what others need.
type realmNames struct {
	mu      sync.Mutex
	session *session.Client // mu
	root    sigma.File      // mu
	dialing chan struct{}   // mu; closed when a dial that is under way is over
}

// named returns the root of a realm's tree at named, over a session that is connected again after named was restarted.
func (k *Kernel) named(ctx context.Context, realm sigma.RealmID) (sigma.File, error) {
	k.mu.Lock()
	n := k.names[realm]
	if n == nil {
		n = &realmNames{}
		k.names[realm] = n
	}
	k.mu.Unlock()
	for {
		n.mu.Lock()
		if n.session != nil {
			select {
			case <-n.session.Done():
				n.session, n.root = nil, nil
			default:
				defer n.mu.Unlock()
				return n.root, nil
			}
		}
		if wait := n.dialing; wait != nil {
			n.mu.Unlock()
			select {
			case <-wait:
				continue
			case <-ctx.Done():
				return nil, sigma.Wrap("kernel.named", "", ctx.Err())
			}
		}
		over := make(chan struct{})
		n.dialing = over
		n.mu.Unlock()
		s, root, err := k.dialNamed(ctx, realm)
		n.mu.Lock()
		n.session, n.root, n.dialing = s, root, nil
		n.mu.Unlock()
		close(over)
		if err != nil {
			k.dropNames(realm, n)
			return nil, err
		}
		return root, nil
	}
}

func (k *Kernel) dialNamed(ctx context.Context, realm sigma.RealmID) (*session.Client, sigma.File, error) {
	s, err := k.services[serviceNamed].dial(ctx)
	if err != nil {
		return nil, nil, err
	}
	root, err := s.Attach(ctx, string(realm))
	if err != nil {
		s.Close()
		return nil, nil, err
	}
	return s, root, nil
}

// dropNames forgets a realm that could not be reached or is gone, so that names nobody has cost nothing.
func (k *Kernel) dropNames(realm sigma.RealmID, n *realmNames) {
	k.mu.Lock()
	if k.names[realm] == n {
		delete(k.names, realm)
		delete(k.trees, realm)
	}
	k.mu.Unlock()
	n.mu.Lock()
	s := n.session
	n.session, n.root = nil, nil
	n.mu.Unlock()
	if s != nil {
		s.Close()
	}
}

// tree is the kernel's own view of a realm, with which it fetches programs.
func (k *Kernel) tree(realm sigma.RealmID) (*namespace.Tree, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.trees[realm]
	if t == nil {
		p := sigma.Principal{Realm: realm, Machine: k.cfg.Machine, System: true}
		t = namespace.New(namespace.Config{Machine: k.cfg.Machine, Root: &root{tree: &tree{k: k, principal: p}, realm: realm},
			Dial: func(ctx context.Context, e sigma.Endpoint) (sigma.File, <-chan struct{}, error) {
				return k.mount(ctx, realm, e)
			}})
		k.trees[realm] = t
	}
	return t, nil
}

// mount attaches to the object store for the kernel. It does not go through tenants' endpoints: their servers could make it wait.
func (k *Kernel) mount(ctx context.Context, realm sigma.RealmID, e sigma.Endpoint) (sigma.File, <-chan struct{}, error) {
	if e.Realm != sigma.SystemRealm {
		return nil, nil, &sigma.Error{Op: "kernel.mount", Kind: sigma.KindNoExec, Msg: "programs are started from /bin and /s3 only", Hint: "copy the program to /bin"}
	}
	s, err := k.services[serviceS3].dial(ctx)
	if err != nil {
		return nil, nil, err
	}
	root, err := s.Attach(ctx, string(realm))
	if err != nil {
		s.Close()
		return nil, nil, err
	}
	return root, s.Done(), nil
}

// realms makes and removes realms at all who keep something of them.
func (k *Kernel) realms() sigma.Realms { return realms{k} }

type realms struct{ k *Kernel }

// admin calls a method of a service's realms file.
func (r realms) admin(ctx context.Context, service, method string, id sigma.RealmID) ([]byte, error) {
	s, err := r.k.services[service].dial(ctx)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	root, err := s.Attach(ctx, "")
	if err != nil {
		return nil, err
	}
	c, ok := root.(sigma.Caller)
	if !ok {
		return nil, sigma.Errorf("kernel.realms", sigma.KindUnsupported, "%s cannot be asked for realms", service)
	}
	payload, err := sigmap.Payload(func(e *sigmap.Coder) { e.RealmID(&id) })
	if err != nil {
		return nil, err
	}
	if method == sigmap.CallList {
		payload = nil
	}
	reply, _, err := c.Call(ctx, method, payload, nil)
	return reply, err
}

// Create implements sigma.Realms.
func (r realms) Create(ctx context.Context, id sigma.RealmID) error {
	if err := id.Check(); err != nil {
		return err
	}
	if id == sigma.SystemRealm {
		return sigma.Errorf("kernel.realms", sigma.KindExists, "the realm system is the provider's")
	}
	_, err := r.admin(ctx, serviceNamed, sigmap.CallCreate, id)
	if err != nil && sigma.KindOf(err) != sigma.KindExists {
		return err
	}
	// What follows is done again for a realm that exists, because a crash may have come in between.
	t, terr := r.k.tree(id)
	if terr != nil {
		return terr
	}
	if serr := t.Symlink(ctx, "/s3/bin", "/bin"); serr != nil && sigma.KindOf(serr) != sigma.KindExists {
		return serr
	}
	if merr := t.MkdirAll(ctx, "/s3/bin", 0o755); merr != nil {
		return merr
	}
	return err
}

// Remove implements sigma.Realms. It ends the procs first, so that nobody writes any more.
func (r realms) Remove(ctx context.Context, id sigma.RealmID) error {
	if err := id.Check(); err != nil {
		return err
	}
	if id == sigma.SystemRealm || id == sigma.DefaultRealm {
		return sigma.Errorf("kernel.realms", sigma.KindPermission, "the realm %s cannot be removed", id)
	}
	if _, err := r.k.named(ctx, id); err != nil {
		return err
	}
	if err := r.k.endRealm(ctx, id); err != nil {
		return err
	}
	if _, err := r.admin(ctx, serviceS3, sigmap.CallRemove, id); err != nil && sigma.KindOf(err) != sigma.KindNotFound {
		return err
	}
	if err := r.k.ux.RemoveRealm(ctx, id); err != nil && sigma.KindOf(err) != sigma.KindNotFound {
		return err
	}
	_, err := r.admin(ctx, serviceNamed, sigmap.CallRemove, id) // last, so that a removal that was interrupted can be repeated
	r.k.mu.Lock()
	n := r.k.names[id]
	r.k.mu.Unlock()
	if n != nil {
		r.k.dropNames(id, n)
	}
	return err
}

// List implements sigma.Realms.
func (r realms) List(ctx context.Context) (out []sigma.RealmInfo, err error) {
	reply, err := r.admin(ctx, serviceNamed, sigmap.CallList, "")
	if err != nil {
		return nil, err
	}
	if err := sigmap.Parse(reply, func(d *sigmap.Coder) { d.RealmInfos(&out) }); err != nil {
		return nil, err
	}
	r.k.mu.Lock()
	defer r.k.mu.Unlock()
	for i := range out {
		out[i].Procs = r.k.core.Live(out[i].ID)
	}
	return out, nil
}
