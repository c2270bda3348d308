package query

import "sigmaos.dev/sigma"

// Names in a database's directory.
const (
	InfoFile    = "info"
	SessionFile = "session"
)

// CallCreate is a call of the directory of databases, for the provider: JSON of CreateRequest ->
// nothing.
const CallCreate = "create"

// CreateRequest is what CallCreate takes.
type CreateRequest struct {
	Name string `json:"name"`
	URL  string `json:"url"` // "" = SQLite
}

// Info is what the file of that name tells, as JSON.
type Info struct {
	Name     string     `json:"name"`
	Engine   string     `json:"engine"`
	Bytes    *int64     `json:"bytes,omitempty"` // of a file of this server's; others do not say
	Sessions int        `json:"sessions"`
	Limits   InfoLimits `json:"limits"`
}

// InfoLimits are the limits of a database and its realm.
type InfoLimits struct {
	Sessions    int         `json:"sessions"`
	Connections int         `json:"connections"`
	TimeMS      int64       `json:"time_ms"`
	TxIdleMS    int64       `json:"transaction_idle_ms"`
	IdleMS      int64       `json:"idle_ms"`
	Rows        int64       `json:"rows"`
	Bytes       sigma.Bytes `json:"bytes"`
	File        sigma.Bytes `json:"file_bytes,omitempty"`
}
