// Package store describes an object store of S3's kind: its address, keys and authorities. It opens
// no connection, so a program that only names a store links no client of it.
//
// A Store has secret keys. Every way of printing it shows its URL alone.
package store

import (
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"strings"

	"sigmaos.dev/sigma"
)

// prefixMax bounds a prefix, so that much of the 1024 bytes that a key may have is left.
const prefixMax = 256

// Store says where objects are kept, and on whose behalf.
type Store struct {
	URL       string `json:"url"` // http[s]://HOST[:PORT]/BUCKET[/PREFIX]
	Region    string `json:"region,omitempty"`
	AccessKey string `json:"access_key"`
	SecretKey string `json:"secret_key"`
	Token     string `json:"token,omitempty"` // of temporary credentials; "" = none
	// certificates of the authorities that are believed, in PEM; "" = those of the program that
	// uses it
	CA string `json:"ca,omitempty"`
}

// Format writes the URL, whatever is asked for, so that nothing secret is printed by mistake.
func (s Store) Format(f fmt.State, _ rune) { io.WriteString(f, s.URL) }

// LogValue is Format for logs.
func (s Store) LogValue() slog.Value { return slog.StringValue(s.URL) }

// Info is what is told of a store: nothing that is secret.
type Info struct {
	Realm  sigma.RealmID `json:"realm"` // the system's: it is of all realms that have none of their own
	URL    string        `json:"url"`
	Region string        `json:"region,omitempty"`
	State  string        `json:"state,omitempty"` // "ok", or what is wrong with it; "" = it was not asked
	Hint   string        `json:"hint,omitempty"`
}

// Place is a Store's URL taken apart.
type Place struct {
	Host   string // HOST[:PORT]
	Secure bool
	Bucket string
	Prefix string // "" or ends with a slash
}

// Parse checks a Store, without asking it.
func (s Store) Parse() (Place, error) {
	wrong := func(what string) (Place, error) {
		return Place{}, &sigma.Error{Op: "store.Parse", Kind: sigma.KindInvalid, Msg: what,
			Hint: "write for example https://s3.example.org/BUCKET/PREFIX"}
	}
	u, err := url.Parse(s.URL)
	switch {
	case err != nil || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "":
		return wrong("the URL of the object store is none")
	case u.User != nil:
		return wrong("a URL is no place for credentials")
	case u.Scheme != "http" && u.Scheme != "https":
		return wrong("an object store is asked by http or https")
	case s.AccessKey == "" || s.SecretKey == "":
		return wrong("an object store needs an access key and a secret key")
	}
	bucket, prefix, _ := strings.Cut(strings.Trim(u.Path, "/"), "/")
	if bucket == "" {
		return wrong("the URL of the object store names no bucket")
	}
	if prefix != "" {
		prefix += "/"
	}
	if len(prefix) > prefixMax || strings.Contains("/"+prefix, "//") || strings.Contains("/"+prefix, "/../") ||
		strings.Contains("/"+prefix, "/./") {
		return wrong(fmt.Sprintf("the prefix is longer than %d bytes, or has empty names or dots as names", prefixMax))
	}
	return Place{Host: u.Host, Secure: u.Scheme == "https", Bucket: bucket, Prefix: prefix}, nil
}

// Check says whether a Store makes sense, without asking it.
func (s Store) Check() error {
	_, err := s.Parse()
	return err
}
