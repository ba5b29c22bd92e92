"""AdminService: the part for access rules, quotas, and the record of who did what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.api.converters import access
from broker.services.rights import CALLER
from halfmq.v1 import access_pb2, admin_pb2_grpc

if TYPE_CHECKING:
    import grpc

    from broker.services.operating.access import AccessOperations

    _Context = grpc.aio.ServicerContext[object, object]


class AccessAdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """Administration of access."""

    _access: AccessOperations

    async def GrantAccess(
        self, request: access_pb2.GrantAccessRequest, context: _Context
    ) -> access_pb2.GrantAccessResponse:
        """Adds a rule."""
        granted = await self._access.grant(access.rule_in(request.rule), CALLER.get().name, replace=request.replace)
        return access_pb2.GrantAccessResponse(rule=access.rule_out(granted))

    async def RevokeAccess(
        self, request: access_pb2.RevokeAccessRequest, context: _Context
    ) -> access_pb2.RevokeAccessResponse:
        """Removes rules."""
        gone = await self._access.revoke(request.rule_ids)
        return access_pb2.RevokeAccessResponse(rules=[access.rule_out(each) for each in gone])

    async def ListAccessRules(
        self, request: access_pb2.ListAccessRulesRequest, context: _Context
    ) -> access_pb2.ListAccessRulesResponse:
        """Lists all rules."""
        found = await self._access.rules()
        return access_pb2.ListAccessRulesResponse(rules=[access.rule_out(each) for each in found])

    async def SetQuota(self, request: access_pb2.SetQuotaRequest, context: _Context) -> access_pb2.SetQuotaResponse:
        """Sets a tenant's quota."""
        quota = await self._access.set_quota(access.quota_in(request.quota), CALLER.get().name)
        return access_pb2.SetQuotaResponse(quota=access.quota_out(quota))

    async def ListQuotas(
        self, request: access_pb2.ListQuotasRequest, context: _Context
    ) -> access_pb2.ListQuotasResponse:
        """Lists all quotas."""
        found = await self._access.quotas()
        return access_pb2.ListQuotasResponse(quotas=[access.quota_out(each) for each in found])

    async def ListAuditRecords(
        self, request: access_pb2.ListAuditRecordsRequest, context: _Context
    ) -> access_pb2.ListAuditRecordsResponse:
        """Lists records of who did what."""
        found, following = await self._access.audit(access.search_in(request), request.page_size, request.page_token)
        return access_pb2.ListAuditRecordsResponse(
            records=[access.record_out(each) for each in found], next_page_token=following
        )
