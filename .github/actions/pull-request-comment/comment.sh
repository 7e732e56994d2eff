#!/usr/bin/env bash
# Posts $FILE as a comment of pull request $NUMBER. A first line that nobody sees, with $NAME, finds the comment again.
set -euo pipefail

most_bytes=60000 # GitHub takes 65,536 characters

fail() {
  echo "::error title=pull-request-comment::$1"
  exit 1
}
[ -f "$FILE" ] || fail "file: there is no file '$FILE'; give the Markdown file that the step before wrote"
case $NUMBER in
  '' | *[!0-9]*) fail "number: must be the number of a pull request, got '$NUMBER'; run the action on: pull_request" ;;
esac

export MARKER="<!-- perfsuite: $NAME -->"
body=$(mktemp)
trap 'rm -f "$body"' EXIT
printf '%s\n' "$MARKER" > "$body"
if [ "$(wc -c < "$FILE")" -gt "$most_bytes" ]; then
  head -c "$most_bytes" "$FILE" | sed '$d' >> "$body"
  printf '\n(cut: the whole report is longer than a comment may be)\n' >> "$body"
else
  cat "$FILE" >> "$body"
fi

comments="repos/$GITHUB_REPOSITORY/issues/$NUMBER/comments"
ours='.[] | select(.user.type == "Bot" and (.body | startswith(env.MARKER))) | .id'
post() {
  local found
  found=$(gh api --paginate "$comments?per_page=100" --jq "$ours") || return
  found=${found%%$'\n'*}
  if [ -n "$found" ]; then
    gh api --silent --method PATCH "repos/$GITHUB_REPOSITORY/issues/comments/$found" --field body=@"$body"
  else
    gh api --silent --method POST "$comments" --field body=@"$body"
  fi
}
post || echo "::warning title=pull-request-comment::no comment: GitHub refused it. The job needs pull-requests: write," \
  "which a pull request of a fork does not have"
