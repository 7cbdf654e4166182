// Package archtest holds the rules of taste and structure that the compiler does not know, as plain
// tests: who may import whom, pure rules, no mutable globals, sizes, docs and licences.
package archtest
