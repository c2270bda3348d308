package mounts

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/apps/mount"
	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/inflight"
	"sigmaos.dev/wire/session"
)

// The server of a mount reads what tenants say, for root. So it has no rights (docs/adr/0044), and
// asks its keeper, by the socket that it was started with, for the four things that need them. With
// a request goes a socket for the answer, so that none waits for another; hostUnback has no answer.

// mountHostFD is where the server has its socket to the keeper.
const mountHostFD = mountReadyFD + 1

// What a server asks its keeper for.
const (
	hostDial   = 'd' // a connection to sigmad
	hostAttach = 'm' // to mount
	hostBack   = 'b' // a backing file for a descriptor
	hostUnback = 'u' // to end that
)

// hostAsksMost is how many requests a keeper has under way; more wait.
const hostAsksMost = 16

// hostWait bounds how long a server waits for its keeper where nothing is dialled.
const hostWait = 5 * time.Second

// hostAsk is a request.
type hostAsk struct {
	What rune
	ID   int32 // of hostUnback
}

// hostAnswer is the answer to one, with a descriptor after hostDial and hostAttach.
type hostAnswer struct {
	ID    int32 // of hostBack
	Fault *hostFault
}

// hostFault is an error.
type hostFault struct {
	Kind      sigma.Kind
	Msg, Hint string
	Missing   bool // a socket is missing
}

// mountHost is the keeper's side. A nil one is that of an ordinary user's mount.
type mountHost struct {
	a      *app
	cfg    mount.Config
	socket *net.UnixConn
	theirs *os.File
	spare  *exec.Cmd // nil before it is started
	open   io.Closer // ends the spare's waiting
	cgroup string
	asks   chan struct{} // one for each request under way

	mu     sync.Mutex
	device *mount.Device // mu; nil before it is mounted, and after
}

// newMountHost prepares cmd, the server, to have no rights and to ask for what needs them.
func (a *app) newMountHost(cfg mount.Config, cmd *exec.Cmd) (*mountHost, error) {
	ours, theirs, err := packetPair()
	if err != nil {
		return nil, sigma.Wrap("sigma.mount", "", err)
	}
	cmd.ExtraFiles = append(cmd.ExtraFiles, theirs)
	cmd.Args = slices.Insert(cmd.Args, 3, "--uid", strconv.Itoa(mountUIDs+os.Getpid()%pidsMost))
	return &mountHost{a: a, cfg: cfg, socket: ours, theirs: theirs, asks: make(chan struct{}, hostAsksMost)}, nil
}

// Run confines the server to its memory, and does what it asks for until it ends.
func (h *mountHost) run(server int) {
	if h == nil {
		return
	}
	h.theirs.Close()
	h.cgroup = limitedCgroup(server, mountMemory)
	go func() {
		b := make([]byte, 256)
		for {
			n, files, err := receive(h.socket, b)
			if err != nil {
				return
			}
			var ask hostAsk
			err = json.Unmarshal(b[:n], &ask)
			if err == nil && len(files) == 0 && ask.What == hostUnback {
				h.unback(ask.ID)
				continue
			}
			if err != nil || len(files) == 0 {
				session.CloseFiles(files)
				continue
			}
			h.asks <- struct{}{}
			go func() {
				h.do(ask, files)
				<-h.asks
			}()
		}
	}()
}

// do does what the server asks for. The first of files is the socket for the answer.
func (h *mountHost) do(ask hostAsk, files []*os.File) {
	defer session.CloseFiles(files)
	ctx, cancel := context.WithTimeout(context.Background(), mountReadyMax)
	defer cancel()
	to, err := session.UnixConn(files[0])
	if err != nil {
		return
	}
	defer to.Close()
	var answer hostAnswer
	var with *os.File
	switch {
	case ask.What == hostDial:
		if with, err = h.dial(ctx); err == nil {
			defer with.Close()
		}
	case ask.What == hostAttach:
		with, err = h.attach()
	case ask.What == hostBack && len(files) == 2:
		answer.ID, err = h.back(files[1])
	default:
		err = sigma.Errorf("sigma.mount", sigma.KindInvalid, "the server of the mount asks for nothing that there is")
	}
	if err != nil {
		answer.Fault = &hostFault{sigma.KindOf(err), err.Error(), sigma.HintOf(err), errors.Is(err, fs.ErrNotExist)}
	}
	if with != nil {
		send(to, answer, with)
	} else {
		send(to, answer)
	}
}

func (h *mountHost) dial(ctx context.Context) (*os.File, error) {
	text, _, err := h.a.CredentialText()
	if err != nil {
		return nil, err
	}
	c, err := sdk.Dial(ctx, h.a.Socket(), text)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.File()
}

func (h *mountHost) attach() (*os.File, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.device != nil {
		return nil, sigma.Errorf("sigma.mount", sigma.KindExists, "it is mounted")
	}
	d, err := mount.Attach(h.cfg)
	if err != nil {
		return nil, err
	}
	h.device = d
	return d.File(), nil
}

var errDetached = sigma.Errorf("sigma.mount", sigma.KindLost, "it is not mounted")

func (h *mountHost) back(fd *os.File) (int32, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.device == nil {
		return 0, errDetached
	}
	return h.device.Back(fd)
}

func (h *mountHost) unback(id int32) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.device == nil {
		return errDetached
	}
	return h.device.Unback(id)
}

// detach gives up the kernel's end of the mount. With a server that has ended nobody has it then,
// and programs that use the mount get ENOTCONN.
func (h *mountHost) detach() {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.device != nil {
		h.device.Close()
		h.device = nil
	}
}

// mountAsker is the server's side: it implements mount.Host, and connects.
type mountAsker struct {
	keeper *net.UnixConn
	realm  sigma.RealmID
	guest  bool
	err    error
}

// hostOfMount is the keeper of the mount that this process serves.
func (a *app) hostOfMount() *mountAsker {
	h := &mountAsker{realm: sigma.RealmID(a.Realm)}
	_, h.guest = a.Guest()
	h.keeper, h.err = session.UnixConn(os.NewFile(mountHostFD, "keeper"))
	return h
}

// ask asks the keeper.
func (h *mountAsker) ask(ctx context.Context, ask hostAsk, fds ...*os.File) (answer hostAnswer, with *os.File,
	err error) {
	const op = "sigma.mount"
	if h.err != nil {
		return answer, nil, sigma.Wrap(op, "", h.err)
	}
	ours, theirs, err := packetPair()
	if err != nil {
		return answer, nil, sigma.Wrap(op, "", err)
	}
	defer ours.Close()
	err = send(h.keeper, ask, append([]*os.File{theirs}, fds...)...)
	theirs.Close()
	stop := context.AfterFunc(ctx, func() { ours.SetReadDeadline(time.Now()) })
	defer stop()
	var files []*os.File
	if err == nil {
		b := make([]byte, 4096)
		n := 0
		if n, files, err = receive(ours, b); err == nil {
			err = json.Unmarshal(b[:n], &answer)
		}
	}
	switch f := answer.Fault; {
	case err != nil:
		err = &sigma.Error{Op: op, Kind: sigma.KindUnavailable, Msg: "the keeper of the mount does not answer",
			Err: err}
	case f != nil && f.Missing:
		err = &sigma.Error{Op: op, Kind: f.Kind, Msg: f.Msg, Hint: f.Hint, Err: fs.ErrNotExist}
	case f != nil:
		err = &sigma.Error{Op: op, Kind: f.Kind, Msg: f.Msg, Hint: f.Hint}
	case (ask.What == hostDial || ask.What == hostAttach) && len(files) != 1:
		err = sigma.Errorf(op, sigma.KindLost, "the keeper of the mount gave no descriptor")
	case len(files) == 1:
		return answer, files[0], nil
	}
	session.CloseFiles(files)
	return answer, nil, err
}

// quickly is ask for what takes no time.
func (h *mountAsker) quickly(ask hostAsk, fds ...*os.File) (hostAnswer, *os.File, error) {
	ctx, cancel := context.WithTimeout(context.Background(), hostWait)
	defer cancel()
	return h.ask(ctx, ask, fds...)
}

// Attach implements mount.Host.
func (h *mountAsker) Attach() (*os.File, error) {
	_, f, err := h.quickly(hostAsk{What: hostAttach})
	return f, err
}

// Back implements mount.Host.
func (h *mountAsker) Back(fd *os.File) (int32, error) {
	answer, _, err := h.quickly(hostAsk{What: hostBack}, fd)
	return answer.ID, err
}

// Unback implements mount.Host. It waits for no answer.
func (h *mountAsker) Unback(id int32) error { return send(h.keeper, hostAsk{What: hostUnback, ID: id}) }

// Connect connects to the realm by a connection that the keeper dialled.
func (h *mountAsker) connect(ctx context.Context) (*sdk.Client, error) {
	realm := h.realm
	if h.guest {
		realm = "" // the credential's
	}
	c, err := sdk.ConnectBy(ctx, realm, func(ctx context.Context) (*net.UnixConn, error) {
		_, f, err := h.ask(ctx, hostAsk{What: hostDial})
		if err != nil {
			return nil, err
		}
		return session.UnixConn(f)
	})
	if sigma.KindOf(err) == sigma.KindNotFound && err != nil {
		return nil, cli.NoRealm(h.realm)
	}
	return c, err
}

// packetPair makes two ends of a socket that keeps messages apart: one for here, one to send away.
func packetPair() (*net.UnixConn, *os.File, error) {
	here, away, err := session.FilePair(unix.SOCK_SEQPACKET)
	if err != nil {
		return nil, nil, err
	}
	c, err := session.UnixConn(here)
	if err != nil {
		away.Close()
	}
	return c, away, err
}

// send sends v as one message, with files.
func send(c *net.UnixConn, v any, files ...*os.File) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var q inflight.Queue
	q.Of(raw, inflight.RecordMax)
	parcel, err := q.Pack(files)
	if err != nil {
		return err
	}
	if parcel == nil {
		_, err = c.Write(b)
		return err
	}
	defer parcel.Drop()
	var sent error
	err = raw.Write(func(fd uintptr) bool {
		sent = parcel.Send(int(fd), b)
		return !errors.Is(sent, syscall.EAGAIN)
	})
	return errors.Join(err, sent)
}

// receive receives one message.
func receive(c *net.UnixConn, b []byte) (n int, files []*os.File, err error) {
	rights := make([]byte, syscall.CmsgSpace(4*2))
	n, got, _, _, err := c.ReadMsgUnix(b, rights)
	if err != nil {
		return 0, nil, err
	}
	all, err := syscall.ParseSocketControlMessage(rights[:got])
	for _, m := range all {
		fds, _ := syscall.ParseUnixRights(&m)
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return n, files, err
}

// startSpare starts who unmounts, and removes the server's cgroup, when this process is gone,
// killed or not.
func (h *mountHost) startSpare() error {
	if h == nil {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return sigma.Wrap("sigma.mount", "", err)
	}
	args := []string{"mount", "--spare", "--device", deviceOf(h.cfg.Dir)}
	if h.cgroup != "" {
		args = append(args, "--cgroup", h.cgroup)
	}
	h.spare = exec.Command(self, append(args, "--", h.cfg.Dir)...)
	h.spare.Dir, h.spare.SysProcAttr = "/", &syscall.SysProcAttr{Setsid: true}
	if h.open, err = h.spare.StdinPipe(); err == nil {
		err = h.spare.Start()
	}
	if err != nil {
		h.spare = nil
	}
	return sigma.Wrap("sigma.mount", self, err)
}

// Close ends the keeper's part, after the server has ended.
func (h *mountHost) close() {
	h.socket.Close()
	if h.spare != nil {
		h.open.Close()
		h.spare.Wait()
	} else if h.cgroup != "" {
		unix.Rmdir(h.cgroup)
	}
}

// spareAgain is how often a spare looks whether the server has ended.
const spareAgain = time.Second

// spareMount waits until the keeper is gone and unmounts what that has not.
func spareMount(dir string, o mountOptions) error {
	io.Copy(io.Discard, os.Stdin)
	if deviceOf(dir) == o.device {
		if err := unmount(dir, true); err != nil {
			return err
		}
	}
	for o.cgroup != "" && errors.Is(unix.Rmdir(o.cgroup),
		unix.EBUSY) { // until programs have closed their files, and the server ends
		time.Sleep(spareAgain)
	}
	return nil
}

// deviceOf is the number of the device that a realm is mounted from on dir; "" if none is.
func deviceOf(dir string) (device string) {
	for _, m := range Mounts() {
		if m.Dir == dir {
			device = m.device
		}
	}
	return device
}
