package remote

import (
	"cmp"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/s3/store"
)

// How long and how often a store is asked.
const (
	// under way at once to one store: it keeps a store at 20 ms busy with 3,000 requests a second,
	// and 64 sockets are few
	requestsMax = 64
	opMax       = 30 * time.Second // for one operation with all its repetitions, if nobody gives it less
	attemptMax  = 10 * time.Second // for one request but for its body
	bodyMax     = 60 * time.Second // for a part or a chunk: 16 MiB at 280 kB/s
	// before the first repetition; doubled with each, and up to half of it more or less at random
	pauseFirst    = 50 * time.Millisecond
	pauseMost     = 2 * time.Second
	listPage      = 1000 // keys, S3's own limit
	metaName      = "Sigma"
	regionDefault = "us-east-1" // what stores without regions expect
)

// Dial opens a connection to the store of a realm; of the system's, to that of all that have none
// of their own. nil is TCP to the host of the URL.
type Dial func(ctx context.Context, owner sigma.RealmID) (net.Conn, error)

// Store says where objects are kept, and on whose behalf.
type Store = store.Store

// client asks one store. Safe for concurrent use.
type client struct {
	host, bucket, prefix string // see store.Place
	secure               bool
	core                 *minio.Core
	options              *minio.Options
	transport            *http.Transport
	slots                chan struct{}
	patience             time.Duration // for one operation with all its repetitions
	once                 bool          // nothing is asked again
	careless             atomic.Bool   // the store does not know conditional writes
}

func newClient(s Store, dial Dial, owner sigma.RealmID) (*client, error) {
	p, err := s.Parse()
	if err != nil {
		return nil, err
	}
	t := &http.Transport{MaxIdleConnsPerHost: requestsMax, MaxConnsPerHost: requestsMax,
		IdleConnTimeout: 30 * time.Second, ResponseHeaderTimeout: bodyMax,
		TLSHandshakeTimeout: attemptMax, DisableCompression: true}
	if dial != nil {
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := dial(ctx, owner)
			if err != nil {
				return nil, errDial{err}
			}
			return conn, nil
		}
	}
	if s.CA != "" {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM([]byte(s.CA)) {
			return nil, sigma.Errorf("remote.Store", sigma.KindInvalid,
				"the certificates for the object store are not in PEM")
		}
		t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	region := s.Region
	if region == "" {
		region = regionDefault
	}
	o := &minio.Options{Creds: credentials.NewStaticV4(s.AccessKey, s.SecretKey, s.Token), Secure: p.Secure,
		Transport: t, Region: region, MaxRetries: 1}
	core, err := minio.NewCore(p.Host, o)
	if err != nil {
		return nil, &sigma.Error{Op: "remote.Store", Kind: sigma.KindInvalid,
			Msg: "the URL of the object store is none", Err: err}
	}
	return &client{host: p.Host, bucket: p.Bucket, prefix: p.Prefix, secure: p.Secure, patience: opMax, core: core,
		options: o, transport: t, slots: make(chan struct{}, requestsMax)}, nil
}

func (c *client) close() { c.transport.CloseIdleConnections() }

// try asks until it goes well, cannot go well, or the time is over: the client's patience, or less
// if ctx says so. What is said then is what went wrong last.
func (c *client) try(ctx context.Context, op, path string, most time.Duration,
	ask func(ctx context.Context, attempt int) error) error {
	within, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	pause, began := pauseFirst, time.Now()
	var last *sigma.Error
	over := func(attempts int) error {
		switch {
		case errors.Is(ctx.Err(), context.Canceled):
			return sigma.Wrap(op, path, ctx.Err())
		case last == nil:
			return judge(op, path, within.Err()).err
		}
		e := *last
		e.Msg = fmt.Sprintf("%s, %d times in %v", e.Msg, attempts, time.Since(began).Round(100*time.Millisecond))
		return &e
	}
	for attempt := 0; ; attempt++ {
		select {
		case c.slots <- struct{}{}:
		case <-within.Done():
			return over(attempt)
		}
		one, done := context.WithTimeout(within, most)
		err := ask(one, attempt)
		done()
		<-c.slots
		if err == nil {
			return nil
		}
		if within.Err() == nil || last == nil {
			f := judge(op, path, err)
			if last = f.err; (!f.again || c.once) && within.Err() == nil {
				return f.err
			}
		}
		select {
		case <-within.Done():
			return over(attempt + 1)
		case <-time.After(pause/2 + rand.N(pause)):
			pause = min(2*pause, pauseMost)
		}
	}
}

// attr is what is known of an object or directory.
type attr struct {
	kind     sigma.FileKind
	version  sigma.Version
	etag     string
	size     uint64
	modified time.Time
}

// tag is what we note with an object: its version. The first number was its identity, which is its
// key's now.
func (a attr) tag() map[string]string {
	return map[string]string{metaName: fmt.Sprintf("1 1 %x", uint64(a.version))}
}

// isOf says whether an object has our note of a.
func (a attr) isOf(o minio.ObjectInfo) bool { return o.UserMetadata[metaName] == a.tag()[metaName] }

// attrOf reads what the store says of an object, with our note if it has one.
func attrOf(key string, o minio.ObjectInfo) attr {
	a := attr{kind: sigma.KindFile, etag: strings.Trim(o.ETag, `"`), size: uint64(max(0, o.Size)),
		modified: o.LastModified}
	if strings.HasSuffix(key, "/") {
		a.kind = sigma.KindDir
	}
	var id, version uint64
	note := o.UserMetadata[metaName]
	if n, err := fmt.Sscanf(note, "1 %x %x", &id, &version); n == 2 && err == nil && version != 0 {
		a.version = sigma.Version(version)
		return a
	}
	sum := hashOf(key + "\x00" + a.etag)
	a.version = sigma.Version(uint64(max(1,
		a.modified.Unix()))*1e9 + sum%1e9) // lists have no note, and stores tell seconds
	return a
}

// head describes an object. KindNotFound if there is none.
func (c *client) head(ctx context.Context, path, key string) (a attr, err error) {
	const op = "remote.Stat"
	err = c.try(ctx, op, path, attemptMax, func(ctx context.Context, _ int) error {
		o, err := c.core.StatObject(ctx, c.bucket, key, minio.StatObjectOptions{})
		if err != nil {
			return err
		}
		if o.ETag == "" || o.Size < 0 {
			return errGarbage{"without an ETag or a length"}
		}
		a = attrOf(key, o)
		return nil
	})
	return a, err
}

// fetch reads length bytes of an object at offset into w, which is given them anew at each attempt.
// KindVersion if it has another ETag. Of a whole object the checksum is compared.
func (c *client) fetch(ctx context.Context, path, key string, a attr, offset, length int64,
	w func([]byte, int64) error) error {
	return c.try(ctx, "remote.Read", path, bodyMax, func(ctx context.Context, _ int) error {
		o := minio.GetObjectOptions{}
		if err := o.SetMatchETag(a.etag); err != nil {
			return errGarbage{"with a bad ETag"}
		}
		whole := offset == 0 && uint64(length) == a.size
		if !whole {
			if err := o.SetRange(offset, offset+length-1); err != nil {
				return err
			}
		}
		body, info, header, err := c.core.GetObject(ctx, c.bucket, key, o)
		if err != nil {
			return err
		}
		defer body.Close()
		if info.ETag == "" {
			return errGarbage{"bytes without an ETag"}
		}
		if strings.Trim(info.ETag, `"`) != a.etag {
			return minio.ErrorResponse{StatusCode: http.StatusPreconditionFailed}
		}
		if n, err := strconv.ParseInt(header.Get("Content-Length"), 10, 64); err != nil || n != length {
			return errGarbage{fmt.Sprintf("%.20q bytes where %d were asked for", header.Get("Content-Length"), length)}
		}
		if want := fmt.Sprintf("bytes %d-%d/%d", offset, offset+length-1, a.size); !whole &&
			header.Get("Content-Range") != want {
			return errGarbage{fmt.Sprintf("the range %.50q, not %q", header.Get("Content-Range"), want)}
		}
		sum := md5.New()
		buf := make([]byte, min(length, 256<<10))
		for at := int64(0); at < length; {
			n, err := io.ReadFull(body, buf[:min(int64(len(buf)), length-at)])
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			if err != nil {
				return err
			}
			if whole {
				sum.Write(buf[:n])
			}
			if err := w(buf[:n], offset+at); err != nil {
				return sigma.Wrap("remote.Read", path, err)
			}
			at += int64(n)
		}
		if whole && isMD5(a.etag) && header.Get("X-Amz-Server-Side-Encryption") != "aws:kms" &&
			hex.EncodeToString(sum.Sum(nil)) != a.etag {
			return errGarbage{"bytes whose checksum is wrong"}
		}
		return nil
	})
}

// isMD5 reports whether an ETag is that of an object that was put as a whole.
func isMD5(etag string) bool {
	_, err := hex.DecodeString(etag)
	return err == nil && len(etag) == 32
}

// condition is what must hold for a write.
type condition struct {
	absent bool
	etag   string // of the object that is to be replaced; "" = any
}

func (c *client) putOptions(a attr, cond condition) minio.PutObjectOptions {
	o := minio.PutObjectOptions{UserMetadata: a.tag(), DisableContentSha256: true}
	if !c.careless.Load() {
		if cond.absent {
			o.SetMatchETagExcept("*")
		} else if cond.etag != "" {
			o.SetMatchETag(cond.etag)
		}
	}
	return o
}

// settle looks whether a write whose answer was lost, or that the store refused when it came again,
// took effect: our note tells.
func (c *client) settle(ctx context.Context, key string, want attr, err error) (attr, error) {
	o, herr := c.core.StatObject(ctx, c.bucket, key, minio.StatObjectOptions{})
	switch {
	case herr != nil && judge("remote.Put", "", herr).again:
		return attr{}, herr // so that both are asked again
	case herr != nil:
		return attr{}, err
	}
	if want.isOf(o) {
		return attrOf(key, o), nil
	}
	return attr{}, err
}

// digests gives the checksum that the store compares a body with, and where TLS does not protect
// the body the hash that is signed. It is hashed before it is sent, not in chunks while it is: not
// every store reads those. An empty body is signed too, so that it has a length for every store.
func (c *client) digests(body io.Reader, size int64) (sum, hash string, err error) {
	all, signed := md5.New(), sha256.New()
	to := io.Writer(all)
	if !c.secure || size == 0 {
		to = io.MultiWriter(all, signed)
	}
	if n, err := io.Copy(to, body); err != nil || n != size {
		return "", "", cmp.Or(err, error(io.ErrUnexpectedEOF))
	}
	if !c.secure || size == 0 {
		hash = hex.EncodeToString(signed.Sum(nil))
	}
	return base64.StdEncoding.EncodeToString(all.Sum(nil)), hash, nil
}

// put makes or replaces an object as a whole.
func (c *client) put(ctx context.Context, path, key string, a attr, data io.ReaderAt, cond condition) (attr, error) {
	sum, hash, err := c.digests(io.NewSectionReader(data, 0, int64(a.size)), int64(a.size))
	if err != nil {
		return a, sigma.Wrap("remote.Put", path, err)
	}
	return c.write(ctx, path, key, a, cond, func(ctx context.Context, o minio.PutObjectOptions) (minio.UploadInfo,
		error) {
		return c.core.PutObject(ctx, c.bucket, key, io.NewSectionReader(data, 0, int64(a.size)), int64(a.size), sum,
			hash, o)
	})
}

// write is a request that makes an object visible.
func (c *client) write(ctx context.Context, path, key string, a attr, cond condition,
	ask func(ctx context.Context, o minio.PutObjectOptions) (minio.UploadInfo, error)) (attr, error) {
	again := false
	err := c.try(ctx, "remote.Put", path, bodyMax, func(ctx context.Context, _ int) error {
		info, err := ask(ctx, c.putOptions(a, cond))
		f := fault{}
		if err != nil {
			f = judge("remote.Put", path, err)
		}
		switch {
		case err == nil && info.ETag == "":
			return errGarbage{"no ETag to a write"}
		case err == nil:
			a.etag, a.modified = strings.Trim(info.ETag, `"`), time.Now()
			return nil
		case f.status == http.StatusNotImplemented && (cond.absent || cond.etag != "") && !c.careless.Swap(true):
			info, err = ask(ctx, c.putOptions(a, condition{}))
			if err == nil {
				a.etag, a.modified = strings.Trim(info.ETag, `"`), time.Now()
			}
			return err
		case again && !f.again: // its first coming may have done it
			var was attr
			if was, err = c.settle(ctx, key, a, err); err == nil {
				a.etag, a.modified = was.etag, was.modified
			}
			return err
		}
		again = again || f.unknown
		return err
	})
	return a, err
}

// copy makes an object of another's bytes, if that still has its ETag.
func (c *client) copy(ctx context.Context, path, from, to string, old, a attr) (attr, error) {
	err := c.try(ctx, "remote.Rename", path, bodyMax, func(ctx context.Context, _ int) error {
		info, err := c.core.Client.CopyObject(ctx, minio.CopyDestOptions{Bucket: c.bucket, Object: to,
			UserMetadata: a.tag(), ReplaceMetadata: true},
			minio.CopySrcOptions{Bucket: c.bucket, Object: from, MatchETag: old.etag})
		if err != nil {
			return err
		}
		if info.ETag == "" {
			return errGarbage{"no ETag to a copy"}
		}
		a.etag, a.modified = strings.Trim(info.ETag, `"`), time.Now()
		return nil
	})
	return a, err
}

// remove removes an object; it is no error if there is none.
func (c *client) remove(ctx context.Context, path, key string) error {
	err := c.try(ctx, "remote.Remove", path, attemptMax, func(ctx context.Context, _ int) error {
		return c.core.RemoveObject(ctx, c.bucket, key, minio.RemoveObjectOptions{})
	})
	if sigma.KindOf(err) == sigma.KindNotFound {
		return nil
	}
	return err
}

// page is a part of a listing.
type page struct {
	objects []minio.ObjectInfo // and directories, whose keys end with a slash; in the order of keys
	token   string             // to go on with
	more    bool
}

// list lists what has the prefix, by directories or all keys, from the token, or else after a key.
func (c *client) list(ctx context.Context, path, prefix, delimiter, after, token string, most int) (p page, err error) {
	err = c.try(ctx, "remote.List", path, attemptMax, func(ctx context.Context, _ int) error {
		o := *c.options
		o.Transport = bound{ctx, c.transport} // Core.ListObjectsV2 takes no context
		core, err := minio.NewCore(c.host, &o)
		if err != nil {
			return err
		}
		r, err := core.ListObjectsV2(c.bucket, prefix, after, token, delimiter, most)
		if reply := minio.ToErrorResponse(err); err != nil && reply.StatusCode == http.StatusNotFound {
			reply.Code =
				"NoSuchBucket" // a listing asks for nothing else that may be missing, whatever the store calls it
			return reply
		}
		if err != nil {
			return err
		}
		if len(r.Contents)+len(r.CommonPrefixes) > 2*listPage || r.IsTruncated &&
			len(r.Contents)+len(r.CommonPrefixes) == 0 && token == r.NextContinuationToken {
			return errGarbage{"a listing that leads nowhere"}
		}
		p = page{token: r.NextContinuationToken, more: r.IsTruncated, objects: merged(r.Contents, r.CommonPrefixes)}
		for _, o := range p.objects {
			if !strings.HasPrefix(o.Key, prefix) {
				return errGarbage{"keys that were not asked for"}
			}
		}
		return nil
	})
	return p, err
}

// merged puts objects and directories, each in order, into one order.
func merged(objects []minio.ObjectInfo, dirs []minio.CommonPrefix) []minio.ObjectInfo {
	out := make([]minio.ObjectInfo, 0, len(objects)+len(dirs))
	for len(objects)+len(dirs) > 0 {
		if len(dirs) == 0 || len(objects) > 0 && objects[0].Key < dirs[0].Prefix {
			out, objects = append(out, objects[0]), objects[1:]
		} else {
			out, dirs = append(out, minio.ObjectInfo{Key: dirs[0].Prefix}), dirs[1:]
		}
	}
	return out
}

// bound is a transport whose requests end with a context.
type bound struct {
	ctx context.Context
	to  http.RoundTripper
}

func (b bound) RoundTrip(r *http.Request) (*http.Response, error) {
	return b.to.RoundTrip(r.WithContext(b.ctx))
}
