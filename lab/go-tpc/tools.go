//go:build tools

// Package tools pins the TPC-C client that the lab builds.
package tools

import _ "github.com/pingcap/go-tpc/pkg/util"
